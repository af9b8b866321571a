"""Whether `manage.py update_search --follow` runs somewhere: then the sweep leaves the search to it.

Words are found in texts by Python, so in a worker with threads all sessions wait while a sweep does that.

The process says every few seconds, in a row of the index's own table of marks, that it adds to the search. One that was
stopped or killed, or whose rounds fail, says nothing, and after SILENT_SECONDS the sweep adds again. All times are by
the database's clock. A time is kept as a number below zero, which no mark of the index is.
"""

from django.db import connection

NAME = "follower"
# Longer than one round of a process that follows, and the pause behind it.
SILENT_SECONDS = 20


def say_that_it_follows() -> None:
    """Called after a round that was finished."""
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO sessions_app_search_mark (name, upto) VALUES (%s, -{_now()}) "  # noqa: S608 - our own text
            "ON CONFLICT (name) DO UPDATE SET upto = excluded.upto",
            [NAME],
        )


def follows() -> bool:
    """Whether such a process has said so in the last SILENT_SECONDS. One query."""
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT -upto > {_now()} - %s FROM sessions_app_search_mark WHERE name = %s",  # noqa: S608 - our own text
            [SILENT_SECONDS, NAME],
        )
        row = cursor.fetchone()
    return row is not None and bool(row[0])


def _now() -> str:
    """SQL for the seconds since 1970, as a whole number."""
    if connection.vendor == "sqlite":
        return "CAST(strftime('%%s', 'now') AS integer)"
    return "CAST(extract(epoch FROM statement_timestamp()) AS bigint)"
