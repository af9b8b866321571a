"""The items of a timeline: a step, a message, an event, the end of a turn, discarded steps, idle time. No queries."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

from django.db.models import Q

from sessions_app.desk.pages.replacements import Replacement, Replacements
from sessions_app.desk.pages.session.step_item import StepItem
from sessions_app.models import Checkpoint, Event, Message
from sessions_app.wording import CUT_SHORT, count, took_effect

IDLE_SECONDS = 60.0


@dataclass(slots=True)
class MessageItem:
    template: ClassVar[str] = "session/_message.html"
    row: Message
    position: int
    at: datetime
    who: str
    replaced: Replacement | None = None

    @classmethod
    def of(cls, row: Message) -> "MessageItem":
        who = "Agent, earlier" if row.role == Message.Role.ASSISTANT else row.who
        return cls(row, row.position, row.created_at, who)

    @property
    def last_at(self) -> datetime:
        return self.at


@dataclass(slots=True)
class EventItem:
    """An event of the audit trail, in one line.

    mark: what the id of its element begins with.
    reason: "" where the step above it says it already.
    """

    template: ClassVar[str] = "session/_event.html"
    mark: ClassVar[str] = "e"
    row: Event
    position: int
    at: datetime
    reason: str

    @classmethod
    def of(cls, row: Event, *, said_above: str = "") -> "EventItem":
        """:param said_above: What the step above shows of it: see `StepItem.said_of`."""
        reason = "" if said_above and said_above in row.reason else row.because
        return cls(row, row.position, row.created_at, reason)

    @property
    def last_at(self) -> datetime:
        return self.at


@dataclass(slots=True)
class EndItem:
    """The end of a turn."""

    template: ClassVar[str] = "session/_turn_end.html"
    row: Checkpoint
    position: int
    at: datetime

    @classmethod
    def of(cls, row: Checkpoint) -> "EndItem":
        return cls(row, row.position, row.created_at)

    @property
    def why(self) -> str:
        """Why the turn ended: a text reply, the tool that was an exit condition, or what cut it short."""
        reason = str((self.row.outcome or {}).get("exit_reason") or "")
        if reason == "text":
            return "text reply"
        return f"{CUT_SHORT[reason][0].lower()}: {reason}" if reason in CUT_SHORT else reason

    @property
    def last_at(self) -> datetime:
        return self.at


@dataclass(slots=True)
class DiscardedItem:
    """The steps of a branch that a rewind, an undo or a repair discarded.

    left_at: the last position of the current history that the branch shows too.
    begins_at: where its own discarded rows begin; later than ``left_at`` if it left another discarded branch.
    branch: the number of the discarded branch.
    failures: how many of its model calls failed, as those of a step that never began.
    effects: how many of its calls took effect, or may have, which the current history does not show.
    certain_effects: of how many of these it is known that they did.
    by, why, at: who discarded it, why, and when.
    undone: it was discarded by undoing a rewind. ``repaired``: by a repair.
    newest: primary key of its last complete checkpoint, None if it has none.
    """

    template: ClassVar[str] = "session/_discarded.html"
    position: int
    left_at: int
    begins_at: int
    branch: int
    steps: int
    failures: int
    effects: int
    certain_effects: int
    by: str
    why: str
    at: datetime
    can_undo: bool
    undone: bool
    repaired: bool = False
    newest: int | None = None

    @property
    def effects_in_words(self) -> str:
        """``2 calls took effect and were not undone``; "" for none."""
        if not self.effects:
            return ""
        known = took_effect(self.effects, certain=self.certain_effects)
        return (
            f"{count(self.effects, 'call')} {known} and {'was' if self.effects == 1 else 'were'} not undone"
        )

    @property
    def what(self) -> str:
        """``2 steps``, ``2 steps and 1 failed model call``, ``3 failed model calls``."""
        failed = count(self.failures, "failed model call")
        if not self.steps:
            return failed if self.failures else count(0, "step")
        return count(self.steps, "step") + (f" and {failed}" if self.failures else "")

    @property
    def last_at(self) -> datetime:
        return self.at


@dataclass(slots=True)
class GapItem:
    """Time in which nothing happened before the item at ``position``.

    mark: what the id of its element begins with.
    """

    template: ClassVar[str] = "session/_idle_gap.html"
    mark: ClassVar[str] = "g"
    position: int
    seconds: float


Item = StepItem | MessageItem | EventItem | EndItem | DiscardedItem | GapItem


def with_gaps(items: Sequence[Item], *, since: datetime | None = None) -> list[Item]:
    """The items with a `GapItem` where nothing happened for `IDLE_SECONDS` or more.

    :param since: When what lies before the items ended, if that is known.
    """
    spaced: list[Item] = []
    last = since
    for item in items:
        if isinstance(item, GapItem | DiscardedItem):
            continue
        start = item.began_at if isinstance(item, StepItem) else item.at
        if last is not None and (idle := (start - last).total_seconds()) >= IDLE_SECONDS:
            spaced.append(GapItem(item.position, idle))
        spaced.append(item)
        last = item.last_at if last is None else max(last, item.last_at)
    return spaced


def with_replacements(items: Sequence[Item], replaced: Replacements) -> list[Item]:
    """The items with each replacement beside the message that it replaces, instead of at the place of its own row."""
    if not replaced.rows:
        return list(items)
    remaining: list[Item] = []
    for item in items:
        if isinstance(item, MessageItem):
            if item.position in replaced.rows:
                continue
            item.replaced = replaced.by_message.get(item.position)
        elif isinstance(item, StepItem):
            item.replies = [reply for reply in item.replies if reply.position not in replaced.rows]
            item.replaced = replaced.by_message
            for call in item.calls:
                call.replaced = replaced.by_call.get(call.row.position)
        remaining.append(item)
    return remaining


def ranges(within: Sequence[tuple[int, int | None]] | None) -> Q:
    """Positions in any of ``(first, last)``; all positions for None."""
    if within is None:
        return Q()
    any_of = Q(pk__in=[])
    for first, last in within:
        any_of |= Q(position__gte=first) if last is None else Q(position__gte=first, position__lte=last)
    return any_of
