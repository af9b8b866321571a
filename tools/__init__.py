"""Programs for developers: private servers for tests and benchmarks, screenshots."""
