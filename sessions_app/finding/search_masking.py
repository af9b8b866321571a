"""Which masking the search index was made with. Another one needs another index: `manage.py rebuild_search`.

It is kept as a number in a row of the index's own table of marks, below zero, which no mark is.
"""

import json
from hashlib import sha256

from django.conf import settings
from django.db import connection

# Raise it when `sessions_app.access.masking` hides more, or less, with the same settings.
VERSION = 1
NAME = "masking"
# A condition with one parameter, `present()`: the index was made with the present masking.
IS_PRESENT = f"EXISTS (SELECT 1 FROM sessions_app_search_mark WHERE name = '{NAME}' AND upto = %s)"  # noqa: S608


def present() -> int:
    """The number of the masking that is configured now."""
    configured = [VERSION, sorted(settings.AGENTSTATE_MASK_KEYS), sorted(settings.AGENTSTATE_MASK_PATTERNS)]
    return -int(sha256(json.dumps(configured).encode()).hexdigest()[:15], 16) - 1


def stored() -> int | None:
    """The number of the masking that the index was made with; None if none has been stored yet."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT upto FROM sessions_app_search_mark WHERE name = %s", [NAME])
        row = cursor.fetchone()
    return None if row is None else int(row[0])


def outdated() -> bool:
    """Whether the index was made with another masking than the present one. One query."""
    return stored() not in (None, present())


def store() -> None:
    """Say that the index is made with the present masking."""
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO sessions_app_search_mark (name, upto) VALUES (%s, %s) "
            "ON CONFLICT (name) DO UPDATE SET upto = excluded.upto",
            [NAME, present()],
        )
