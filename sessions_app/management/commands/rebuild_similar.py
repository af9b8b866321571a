"""``manage.py rebuild_similar``: compare all sessions at rest again, with the current masking and embedders.

Needed after a change of AGENTSTATE_MASK_KEYS or AGENTSTATE_MASK_PATTERNS, or of an agent's embedder. It may be stopped
and started again at any time. It begins only if all modules of AGENTSTATE_AGENTS can be imported. Where an agent is not
registered, or its embedder fails, the exit code is 1, and sessions keep the vectors that the current masking allows.
"""

from collections import Counter
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import Error

from agentstate.pipes import ends_quietly
from sessions_app.management.printed import one_line
from sessions_app.management.unusable import why_unusable
from sessions_app.models import Session, Status
from sessions_app.runtime import similar
from sessions_app.runtime.agents import load_agents
from sessions_app.wording import count


class Command(BaseCommand):
    help = "Compare all sessions at rest again. Run it after the masking settings or an agent's embedder have changed."

    def handle(self, *args: Any, **options: Any) -> None:
        with ends_quietly():
            self._compare()

    def _compare(self) -> None:
        if problems := load_agents():
            raise CommandError(f"No session was compared. {one_line(' '.join(problems.values()))}")
        at_rest = Session.objects.exclude(status__in=(Status.QUEUED, Status.RUNNING))
        number, not_embedded = 0, Counter[str]()
        try:
            for pk, agent in at_rest.order_by("pk").values_list("pk", "agent").iterator():
                not_embedded[agent] += not similar.compare(pk)
                number += 1
        except Error as error:
            raise CommandError(why_unusable(error)) from error
        self.stdout.write(f"{count(number, 'session')} compared.")
        if agents := sorted(+not_embedded):
            raise CommandError(
                f"{count(not_embedded.total(), 'session')} could not be compared by meaning as now configured, since "
                "the embedder failed or the agent is not registered here (AGENTSTATE_AGENTS): "
                f"{one_line(', '.join(agents))}. Run the command again once that is corrected."
            )
