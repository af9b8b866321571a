"""``manage.py rebuild_search``: rebuild the search index and the keys of causes with the current masking.

Needed after a change of AGENTSTATE_MASK_KEYS or AGENTSTATE_MASK_PATTERNS, once all processes have been restarted. A
killed one is finished by the sweep.
"""

from functools import partial
from typing import Any

from django.apps import apps
from django.core.management.base import BaseCommand

from sessions_app.finding import search_index
from sessions_app.history.causes_again import name_causes_again


class Command(BaseCommand):
    help = (
        "Rebuild the search index. Run it after the masking settings have changed and every process has been "
        "restarted."
    )

    def handle(self, *args: Any, **options: Any) -> None:
        search_index.rebuild()
        # Everyone may see these, and the former masking may have left in them what is hidden now.
        name_causes_again(partial(apps.get_model, "sessions_app"))
        while search_index.update(seconds=5):
            self.stdout.write(".", ending="")
            self.stdout.flush()
        self.stdout.write("The search index has been rebuilt.")
