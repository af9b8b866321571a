"""``manage.py update_search``: add to the search what is not in it yet.

The sweep adds for one second in every five, in a worker. With ``--follow`` this goes on until it is stopped, and the
sweep leaves the search to it: for installations where one second is too little, or where the sessions of that worker
are not to wait for it. Two of them do the same work twice, and harm nothing.
"""

import logging
import signal
from argparse import ArgumentParser
from contextlib import suppress
from time import sleep
from typing import Any

from django.core.management.base import BaseCommand
from django.db import InterfaceError, InternalError, OperationalError, connection

from sessions_app.finding import search_follower, search_index

logger = logging.getLogger(__name__)
# How long new rows may wait, once all that there were have been added.
PAUSE_SECONDS = 1.0
# A database that is away is asked again as often as this.
AWAY_SECONDS = 5.0
_AWAY = (OperationalError, InterfaceError, InternalError)


class Command(BaseCommand):
    help = "Add to the search what is not in it yet."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--follow", action="store_true", help="go on until Ctrl-C, or SIGTERM")

    def handle(self, *args: Any, follow: bool, **options: Any) -> None:
        # As process 1 of a container it would not be told otherwise.
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            if follow:
                _follow()
            while search_index.update(seconds=5):
                pass
        except KeyboardInterrupt:
            raise SystemExit(130) from None
        finally:
            signal.signal(signal.SIGTERM, before)
        self.stdout.write("The search is up to date.")


def _follow() -> None:
    """Until it is interrupted."""
    try:
        while True:
            sleep(_round())
    finally:
        with suppress(*_AWAY):
            search_follower.say_that_it_ends()


def _round() -> float:
    """Add what there is, for some seconds. Returns how long to wait for the next round."""
    try:
        has_more = search_index.update(seconds=5)
        search_follower.say_that_it_follows()
    except _AWAY as error:
        logger.warning("Nothing is added to the search, tried again in %g s: %s", AWAY_SECONDS, error)
        connection.close()
        return AWAY_SECONDS
    return 0 if has_more else PAUSE_SECONDS
