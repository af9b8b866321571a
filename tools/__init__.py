"""Programs for developers: private servers for tests and benchmarks, screenshots, the audit of dependencies, module list."""
