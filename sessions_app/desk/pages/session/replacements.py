"""Messages that a person replaced: the original stays on the page, with what the model reads in its place."""

from dataclasses import dataclass, field
from datetime import datetime

from sessions_app.access.masking import Mask
from sessions_app.models import Branch, Event, EventKind, Message


@dataclass(frozen=True, slots=True)
class Replacement:
    """``position`` is that of the row that holds the new text."""

    position: int
    text: str
    by: str
    why: str
    at: datetime


@dataclass(frozen=True, slots=True)
class Replacements:
    """The latest replacements, by the position of the original message and by that of the call whose result it was.

    ``rows`` are the positions of the new texts: they are shown beside the originals, not by themselves.
    """

    by_message: dict[int, Replacement] = field(default_factory=dict)
    by_call: dict[int, Replacement] = field(default_factory=dict)
    rows: frozenset[int] = frozenset()

    def current(self, position: int) -> int:
        """Position of the message that replaced the one at ``position``, or ``position`` itself."""
        replacement = self.by_message.get(position)
        return replacement.position if replacement else position


NONE = Replacements()


def on(branch: Branch, mask: Mask) -> Replacements:
    """What was replaced in the history that the branch shows. Two queries; none if the branch has no ancestors."""
    if not branch.left_another_branch:
        return NONE
    events = Event.objects.visible_on(branch).filter(kind=EventKind.REPAIRED).order_by("position")
    repairs = [event for event in events if event.data.get("what") == "message"]
    if not repairs:
        return NONE
    rows = Message.objects.visible_on(branch).filter(position__in=[event.data["by"] for event in repairs])
    texts = {position: mask.text(text) for position, text in rows.values_list("position", "text")}
    original: dict[int, int] = {}
    by_message: dict[int, Replacement] = {}
    by_call: dict[int, Replacement] = {}
    for event in repairs:
        new_position, replaced = event.data["by"], event.data["position"]
        # A replacement may itself have been replaced.
        original[new_position] = original.get(replaced, replaced)
        replacement = Replacement(
            new_position,
            texts.get(new_position, ""),
            event.actor_name,
            mask.text(event.reason),
            event.created_at,
        )
        by_message[original[new_position]] = replacement
        if (call := event.data.get("call_position")) is not None:
            by_call[call] = replacement
    return Replacements(by_message, by_call, frozenset(texts))
