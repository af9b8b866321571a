"""``manage.py update_search``: add to the search what the sweep has not added yet.

The sweep adds for one second in every five. With ``--follow`` this goes on until it is stopped, for installations where
that is too little; it may run beside the sweep.
"""

import signal
from argparse import ArgumentParser
from time import sleep
from typing import Any

from django.core.management.base import BaseCommand

from sessions_app.finding import search_index

# How long new rows may wait, once all that there were have been added.
PAUSE_SECONDS = 1.0


class Command(BaseCommand):
    help = "Add to the search what the sweep has not added yet."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--follow", action="store_true", help="go on until Ctrl-C, or SIGTERM")

    def handle(self, *args: Any, follow: bool, **options: Any) -> None:
        # As process 1 of a container it would not be told otherwise.
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            _add_all()
            while follow:
                sleep(PAUSE_SECONDS)
                _add_all()
        except KeyboardInterrupt:
            raise SystemExit(130) from None
        finally:
            signal.signal(signal.SIGTERM, before)
        self.stdout.write("The search is up to date.")


def _add_all() -> None:
    while search_index.update(seconds=5):
        pass
