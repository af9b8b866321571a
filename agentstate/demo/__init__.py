"""Demo agents of a small insurance company. Only the demo and its tests need this package."""
