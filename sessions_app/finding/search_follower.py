"""Whether `manage.py update_search --follow` runs somewhere: then the sweep leaves the search to it.

Words are found in texts by Python, so in a worker with threads all sessions wait while a sweep does that.

The process says once a second, in a row of the index's own table of marks, that it has just added all that there was,
or a part of it. One that was killed, or whose database answers no more, has said nothing for a while, and the sweep
adds again. The time is kept as a number below zero, which no mark of the index is.
"""

from django.db import connection
from django.utils import timezone

NAME = "follower"
# Longer than one round of a process that follows takes, also where the machine is busy.
SILENT_SECONDS = 20


def say_that_it_follows() -> None:
    """Called behind each round."""
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO sessions_app_search_mark (name, upto) VALUES (%s, %s) "
            "ON CONFLICT (name) DO UPDATE SET upto = excluded.upto",
            [NAME, -_now()],
        )


def say_that_it_ends() -> None:
    """Another process that follows says within a second that it does."""
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM sessions_app_search_mark WHERE name = %s", [NAME])


def follows() -> bool:
    """Whether such a process has said so in the last SILENT_SECONDS. One query.

    Never one whose clock is further ahead: it would be believed long after it has ended.
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT upto FROM sessions_app_search_mark WHERE name = %s", [NAME])
        row = cursor.fetchone()
    return row is not None and abs(_now() + row[0]) < SILENT_SECONDS


def _now() -> int:
    return int(timezone.now().timestamp())
