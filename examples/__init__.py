"""Examples: scripts to run and to read. See examples/README.md."""
