"""What it costs, measured side by side in one run. `make bench` runs all; nothing here is a test."""
