"""Messages that a person replaced: the original stays on the page, with what the model reads in its place."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from django.db.models import QuerySet

from sessions_app.access.masking import Mask
from sessions_app.history import repairs
from sessions_app.models import Branch, Event, Message
from sessions_app.models.compiled import compiled


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
    return on_each({branch: 0}, mask)[branch.pk]


def on_each(branches: Mapping[Branch, int], mask: Mask) -> dict[int, Replacements]:
    """As `on` for several branches, by their keys: what was replaced after the position that is given for each.

    Two queries for any number of branches; none if no branch has ancestors.
    """
    on_branches = {
        pk: [event for event in events if event.data.get("what") == repairs.OF_A_MESSAGE]
        for pk, events in repairs.on_each(branches).items()
    }
    found = {event.pk: event for events in on_branches.values() for event in events}
    if not found:
        return {branch.pk: NONE for branch in branches}
    branches_of_repairs = {event.branch_id for event in found.values() if event.branch_id is not None}
    rows = _texts(tuple(branches_of_repairs), tuple({event.data["by"] for event in found.values()}))
    texts = {(at, position): mask.message(role, text) for at, position, role, text in rows}
    return {pk: _latest(events, texts, mask) for pk, events in on_branches.items()}


@compiled
def _texts(
    branches: tuple[int, ...], positions: tuple[int, ...]
) -> QuerySet[Message, tuple[int, int, str, str]]:
    rows = Message.objects.filter(branch__in=branches, position__in=positions)
    return rows.values_list("branch_id", "position", "role", "text")


def _latest(events: Iterable[Event], texts: Mapping[tuple[int, int], str], mask: Mask) -> Replacements:
    """``texts`` are the new ones, by the branch and the position of their rows."""
    original: dict[int, int] = {}
    by_message: dict[int, Replacement] = {}
    by_call: dict[int, Replacement] = {}
    for event in events:
        new_position, replaced = event.data["by"], event.data["position"]
        # A replacement may itself have been replaced.
        original[new_position] = original.get(replaced, replaced)
        replacement = Replacement(
            new_position,
            texts.get((event.branch_id or 0, new_position), ""),
            event.actor_name,
            str(mask.named("reason", event.reason)),
            event.created_at,
        )
        by_message[original[new_position]] = replacement
        if (call := event.data.get("call_position")) is not None:
            by_call[call] = replacement
    return Replacements(by_message, by_call, frozenset(original))
