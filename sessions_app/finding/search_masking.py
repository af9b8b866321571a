"""Which masking the search index was built with. A different masking needs a new index: `manage.py rebuild_search`.

It is kept as a number in a row of the index's own table of marks, below zero, which no mark is. Where two processes
with different settings have added to the index it is `MIXED`: that of none, until the index is made again.
"""

import json
from hashlib import sha256

from django.conf import settings
from django.db import connection

# Raise it when `sessions_app.access.masking` hides more, or less, with the same settings.
VERSION = 2
NAME = "masking"
MIXED = 0
# A condition with one parameter, `present()`: the index was made with the present masking.
IS_PRESENT = f"EXISTS (SELECT 1 FROM sessions_app_search_mark WHERE name = '{NAME}' AND upto = %s)"  # noqa: S608


def present() -> int:
    """The number of the masking that is configured now."""
    keys, patterns = settings.AGENTSTATE_MASK_KEYS, settings.AGENTSTATE_MASK_PATTERNS
    # Where nothing is hidden, each version hides the same.
    configured = [VERSION if keys or patterns else 1, sorted(keys), sorted(patterns)]
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


def may_add() -> bool:
    """Whether what was made with the present masking may be added, which is done in the same transaction.

    No other process changes the masking of the index before this transaction ends. Called before anything else of the
    index is locked, as `store` is.
    """
    note_present()
    shared = "" if connection.vendor == "sqlite" else " FOR SHARE"
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT upto FROM sessions_app_search_mark WHERE name = %s{shared}", [NAME])  # noqa: S608
        row = cursor.fetchone()
    # Else it was changed since.
    return row is None or int(row[0]) in (MIXED, present())


def note_present() -> None:
    """Say that something was made with the present masking. If that of the index is another one, it is `MIXED` now."""
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE sessions_app_search_mark SET upto = %s WHERE name = %s AND upto NOT IN (%s, %s)",
            [MIXED, NAME, MIXED, present()],
        )
