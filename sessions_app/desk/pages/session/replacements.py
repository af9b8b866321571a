"""Messages that a person replaced: what was said stays on the page, with what the model reads in its place."""

from dataclasses import dataclass, field
from datetime import datetime

from sessions_app.access.masking import Mask
from sessions_app.models import Branch, Event, EventKind, Message


@dataclass(frozen=True, slots=True)
class Replacement:
    """``position`` is that of the row that holds the new words."""

    position: int
    text: str
    by: str
    why: str
    at: datetime


@dataclass(frozen=True, slots=True)
class Replacements:
    """By the position of the first message, and by that of the call whose result it told, the words that count now.

    ``rows`` are the places of the new words: they are shown where the old ones stand, not by themselves.
    """

    by_message: dict[int, Replacement] = field(default_factory=dict)
    by_call: dict[int, Replacement] = field(default_factory=dict)
    rows: frozenset[int] = frozenset()

    def now(self, position: int) -> int:
        """Where the words stand that the model reads in place of those first said at the position."""
        found = self.by_message.get(position)
        return found.position if found else position


NONE = Replacements()


def on(branch: Branch, mask: Mask) -> Replacements:
    """What was replaced in the history that the branch shows. Two queries, none where nothing was left behind."""
    if not branch.left_another_branch:
        return NONE
    events = Event.objects.visible_on(branch).filter(kind=EventKind.REPAIRED).order_by("position")
    done = [event for event in events if event.data.get("what") == "message"]
    if not done:
        return NONE
    rows = Message.objects.visible_on(branch).filter(position__in=[event.data["by"] for event in done])
    texts = {position: mask.text(text) for position, text in rows.values_list("position", "text")}
    first: dict[int, int] = {}
    by_message: dict[int, Replacement] = {}
    by_call: dict[int, Replacement] = {}
    for event in done:
        place, old = event.data["by"], event.data["position"]
        first[place] = first.get(old, old)
        new = Replacement(
            place, texts.get(place, ""), event.actor_name, mask.text(event.reason), event.created_at
        )
        by_message[first[place]] = new
        if (call := event.data.get("call_position")) is not None:
            by_call[call] = new
    return Replacements(by_message, by_call, frozenset(texts))
