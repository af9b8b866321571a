"""``manage.py rebuild_search``: rebuild the search index and the keys of causes with the current masking.

Needed after a change of AGENTSTATE_MASK_KEYS or AGENTSTATE_MASK_PATTERNS, once all processes have been restarted. If it
is killed, either the desk still says that it is needed, or the sweep finishes it.
"""

from contextlib import suppress
from functools import partial
from typing import Any

from django.apps import apps
from django.core.management.base import BaseCommand, CommandError
from django.db import Error

from agentstate.pipes import ends_quietly
from sessions_app.finding import search_index
from sessions_app.history.causes_again import name_causes_again
from sessions_app.management.unusable import why_unusable


class Command(BaseCommand):
    help = (
        "Rebuild the search index. Run it after the masking settings have changed and every process has been "
        "restarted."
    )

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            with ends_quietly():
                self._rebuild()
        except Error as error:
            raise CommandError(why_unusable(error)) from error

    def _rebuild(self) -> None:
        # Everyone may see these, and the former masking may have left in them what is hidden now. They come first,
        # since nothing but this command completes them: once the index is emptied, the desk no longer asks for it.
        name_causes_again(partial(apps.get_model, "sessions_app"))
        search_index.rebuild()
        while search_index.update(seconds=5):
            # It goes on where nobody reads this.
            with suppress(BrokenPipeError):
                self.stdout.write(".", ending="")
                self.stdout.flush()
        self.stdout.write("The search index has been rebuilt.")
