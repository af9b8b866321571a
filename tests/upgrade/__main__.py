"""DATABASE_URL=... DJANGO_SETTINGS_MODULE=tests.settings python -m tests.upgrade EXPECTED.json [--all-tabs]

with the file of `tests/data/upgrade` checks the database, which it changes. `tests/test_upgrade.py` runs it on a copy
of each stored one, in a process of its own, since a database is chosen when Django starts.
"""

import sys
from pathlib import Path

import django

if __name__ == "__main__":
    django.setup()
    from tests.upgrade.check import main

    sys.exit(main(Path(sys.argv[1]), all_tabs="--all-tabs" in sys.argv))
