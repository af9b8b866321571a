"""What the stored databases of earlier versions are made with and checked with; see `tests/test_upgrade.py`."""
