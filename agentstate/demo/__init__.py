"""Demo agents on a small insurance company of their own. Nothing but its tests needs this package."""
