"""What to type on the demo desk, for people who see it for the first time. At most one query."""

from collections.abc import Iterable
from dataclasses import dataclass

from django.db.models import QuerySet

from agentstate.names import DEMO_WORKER, SCRIPTED_MODEL
from sessions_app.models import Event
from sessions_app.models.compiled import compiled

# So many events are looked at for one of the worker that makes the demo's sessions.
OLDEST = 100


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A message that shows something, and the agent to send it to."""

    agent: str
    message: str


SUGGESTIONS = (
    Suggestion("claims", "Refund CLM-1047, policy POL-8806"),
    Suggestion("claims", "Does my deductible apply to CLM-1042?"),
    Suggestion("letters", "Send a letter to POL-8807 saying that the roofer comes on Thursday."),
)


def suggestions(agents: Iterable[tuple[str, str]]) -> list[Suggestion]:
    """What can be typed to the agents, given as ``(key, model)``.

    Nothing where a real model answers, and where the demo's sessions are not.
    """
    scripted = {key for key, model in agents if model == SCRIPTED_MODEL}
    found = [suggestion for suggestion in SUGGESTIONS if suggestion.agent in scripted]
    return found if found and _has_sessions_of_the_demo() else []


def _has_sessions_of_the_demo() -> bool:
    """They are made in an empty database, so theirs are the oldest events. One query."""
    return DEMO_WORKER in _names_of_oldest_events()


@compiled
def _names_of_oldest_events() -> QuerySet[Event, str]:
    return Event.objects.order_by("pk").values_list("actor_name", flat=True)[:OLDEST]
