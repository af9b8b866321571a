"""``manage.py rebuild_similar``: compare all sessions at rest again, with the current masking and embedders.

Needed after a change of AGENTSTATE_MASK_KEYS or AGENTSTATE_MASK_PATTERNS, or of an agent's embedder. It may be stopped
and started again at any time.
"""

from typing import Any

from django.core.management.base import BaseCommand

from sessions_app.models import Session, Status
from sessions_app.runtime import similar
from sessions_app.runtime.agents import load_agents
from sessions_app.wording import count


class Command(BaseCommand):
    help = "Compare all sessions at rest again. Run it after the masking settings or an agent's embedder have changed."

    def handle(self, *args: Any, **options: Any) -> None:
        for problem in load_agents():
            self.stderr.write(problem)
        at_rest = Session.objects.exclude(status__in=(Status.QUEUED, Status.RUNNING))
        number = 0
        for pk in at_rest.order_by("pk").values_list("pk", flat=True).iterator():
            similar.compare(pk)
            number += 1
        self.stdout.write(f"{count(number, 'session')} compared.")
