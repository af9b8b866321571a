"""``manage.py update_search``: add what is missing to the search index.

The sweep adds for one second in every five, in a worker. With ``--follow`` this goes on until it is stopped, and the
sweep leaves the search to it: for installations where one second is too little, or where the sessions of that worker
are not to wait for it. Two of them do the same work twice, and harm nothing. SIGTERM is how it is stopped, with exit
code 0; whatever is interrupted by Ctrl-C, or by SIGTERM before all is added, ends with 130.
"""

import logging
import signal
from argparse import ArgumentParser
from time import monotonic, sleep
from typing import Any, NoReturn

from django.core.management.base import BaseCommand, CommandError
from django.db import Error, ProgrammingError, connection

from agentstate.pipes import ends_quietly
from sessions_app.finding import search_follower, search_index
from sessions_app.management.unusable import is_not_migrated, why_unusable
from sessions_app.unavailable import UNAVAILABLE

logger = logging.getLogger(__name__)
# How long new rows may wait, once all that there were have been added.
PAUSE_SECONDS = 1.0
# The pause after a round that has failed, since the database is away or somebody has locked what it needs.
AWAY_SECONDS = 5.0
# As often as this it says that it follows.
SAID_SECONDS = 5.0


class Command(BaseCommand):
    help = "Add what is missing to the search index."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--follow", action="store_true", help="keep running until Ctrl-C or SIGTERM")

    def handle(self, *args: Any, follow: bool, **options: Any) -> None:
        # As process 1 of a container it would not be told otherwise.
        before = signal.signal(signal.SIGTERM, _end if follow else signal.default_int_handler)
        try:
            with ends_quietly():
                if follow:
                    _follow()
                while search_index.update(seconds=5):
                    pass
                self.stdout.write("The search is up to date.")
        except Error as error:
            raise CommandError(why_unusable(error)) from error
        finally:
            signal.signal(signal.SIGTERM, before)


def _end(signum: int, frame: object) -> NoReturn:
    raise SystemExit(0)


def _follow() -> NoReturn:
    """Until it is interrupted. It waits for a database that is away, or is not migrated yet.

    It says nothing at its end: that would wait for a database that is away.
    """
    said_at = float("-inf")
    while True:
        try:
            pause = 0 if search_index.update(seconds=5) else PAUSE_SECONDS
            if monotonic() - said_at >= SAID_SECONDS:
                search_follower.say_that_it_follows()
                said_at = monotonic()
        except (*UNAVAILABLE, ProgrammingError) as error:
            if isinstance(error, ProgrammingError) and not is_not_migrated(error):
                raise
            logger.warning(
                "A round of the search failed, and the next begins in %g s: %s",
                AWAY_SECONDS,
                why_unusable(error),
            )
            connection.close()
            pause = AWAY_SECONDS
        sleep(pause)
