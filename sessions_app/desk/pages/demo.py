"""What to type on the demo desk, for who sees it for the first time."""

from collections.abc import Iterable
from dataclasses import dataclass

from agentstate.names import SCRIPTED_MODEL


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
    """What can be typed to the agents, given as ``(key, model)``; nothing where a real model answers."""
    scripted = {key for key, model in agents if model == SCRIPTED_MODEL}
    return [suggestion for suggestion in SUGGESTIONS if suggestion.agent in scripted]
