"""Programs for developers: private servers for tests and benchmarks, screenshots, dependency audit, list of modules."""
