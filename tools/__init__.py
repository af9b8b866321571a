"""Programs for developers: private servers for tests and benchmarks, screenshots, audit of dependencies, module list."""
