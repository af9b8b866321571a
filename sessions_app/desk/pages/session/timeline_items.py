"""The items of a timeline: a step, a message, an event, the end of a turn, discarded steps, idle time. No queries."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import groupby
from typing import ClassVar

from django.db.models import Q

from agentstate.names import ENDED_CALL_STATES
from sessions_app.desk.pages.replacements import Replacement, Replacements
from sessions_app.desk.pages.session.calls import CallItem
from sessions_app.finding import stuck
from sessions_app.models import (
    Checkpoint,
    Event,
    EventKind,
    Message,
    ModelCall,
    Phase,
    Session,
    Status,
)
from sessions_app.wording import count

IDLE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Failures:
    """Model calls that failed one after another with the same error; ``at`` is when the last one began.

    ``position`` is that of the first.
    """

    position: int
    error: str
    number: int
    at: datetime


@dataclass(slots=True)
class StepItem:
    """A checkpoint, and what happened from there to the next one.

    retries: each tells that a failed model call of the step is tried again.
    doing: of a step that is running and has not begun: what it waits for, or why the session does not move.
    """

    kind: ClassVar[str] = "step"
    checkpoint: Checkpoint
    position: int
    at: datetime
    until: datetime | None = None
    next_phase: str = ""
    tone: str = "done"
    doing: str = ""
    replies: list[Message] = field(default_factory=list)
    model_calls: list[ModelCall] = field(default_factory=list)
    calls: list[CallItem] = field(default_factory=list)
    retries: list[Event] = field(default_factory=list)
    replaced: dict[int, Replacement] = field(default_factory=dict)

    @classmethod
    def of(cls, row: Checkpoint) -> "StepItem":
        return cls(checkpoint=row, position=row.position, at=row.created_at)

    def end(self, following: Checkpoint) -> None:
        self.until = following.created_at
        self.next_phase = following.phase

    def take_state_of(self, session: Session, now: datetime) -> None:
        """For the newest step: the session's state is its state."""
        if session.status == Status.RUNNING:
            self.doing = stuck.why_not_moving(session, now) or "Waiting for the model."
        self.next_phase = session.phase if session.phase in (Phase.ERROR, Phase.EXECUTING) else ""
        tone, _ = stuck.status_label(session, now)
        self.tone = tone if session.phase != Phase.DONE else "idle"

    def said_of(self, event: Event) -> str:
        """What the step shows of what an event tells: why a person rejected a call, or the last error."""
        for call in self.calls:
            if event.kind == EventKind.REJECTED and call.row.pk == event.data.get("call"):
                message = call.approval.message if call.approval is not None else ""
                return message if message == event.reason else ""
        return self.failures[-1].error if self.failures else ""

    @property
    def began_at(self) -> datetime:
        """When its first call started; a rewound session may have stayed at its checkpoint for a long time."""
        if self.model_calls:
            return self.model_calls[0].started_at
        return next((call.row.started_at for call in self.calls if call.row.started_at), self.at)

    @property
    def number(self) -> int:
        return self.checkpoint.step + 1

    @property
    def begun(self) -> bool:
        return bool(self.model_calls or self.calls)

    @property
    def phases(self) -> list[str]:
        path: list[str] = [self.checkpoint.phase]
        if self.calls:
            path += [Phase.PLANNING.value] if path[-1] == Phase.REFLECTING else []
            path.append(Phase.EXECUTING.value)
        if self.next_phase and self.next_phase != path[-1]:
            path.append(self.next_phase)
        return path

    @property
    def texts(self) -> list[Message]:
        """What the agent wrote; where a person decided about a call, the same text is stored with it once more."""
        texts: dict[str, Message] = {}
        for reply in self.replies:
            if reply.text:
                texts.setdefault(reply.text, reply)
        return list(texts.values())

    @property
    def unfinished(self) -> list[CallItem]:
        return [call for call in self.calls if call.row.status not in ENDED_CALL_STATES]

    @property
    def failures(self) -> list[Failures]:
        """The failed model calls, those in a row with the same error as one."""
        failed = [call for call in self.model_calls if call.error]
        grouped = [list(calls) for _, calls in groupby(failed, key=lambda call: call.error)]
        return [
            Failures(calls[0].position, calls[0].error, len(calls), calls[-1].started_at) for calls in grouped
        ]

    @property
    def model_seconds(self) -> float:
        return sum(call.seconds for call in self.model_calls)

    @property
    def tokens(self) -> int:
        return sum(call.prompt_tokens + call.completion_tokens for call in self.model_calls)

    @property
    def cached(self) -> bool:
        """Whether its reply is from the semantic cache: the model was not called."""
        return any(call.cached for call in self.model_calls)

    @property
    def models(self) -> list[str]:
        return list(dict.fromkeys(call.model for call in self.model_calls if call.model))

    @property
    def last_at(self) -> datetime:
        """When its last call ended, or started if it has not ended."""
        times = [self.began_at, *(call.ended_at for call in self.model_calls)]
        times += [time for call in self.calls for time in (call.row.started_at, call.row.ended_at) if time]
        return max(times)

    @property
    def seconds(self) -> float | None:
        return (self.last_at - self.began_at).total_seconds() if self.begun else None

    @property
    def colour(self) -> str:
        if self.failures and not self.replies:
            return "error"
        return self.tone


@dataclass(slots=True)
class MessageItem:
    kind: ClassVar[str] = "message"
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

    reason: "" where the step above it says it already.
    """

    kind: ClassVar[str] = "event"
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

    kind: ClassVar[str] = "end"
    row: Checkpoint
    position: int
    at: datetime

    @classmethod
    def of(cls, row: Checkpoint) -> "EndItem":
        return cls(row, row.position, row.created_at)

    @property
    def exit_reason(self) -> str:
        return str((self.row.outcome or {}).get("exit_reason") or "")

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
    by, why, at: who discarded it, why, and when.
    undone: it was discarded by undoing a rewind. ``repaired``: by a repair.
    newest: primary key of its last complete checkpoint, None if it has none.
    """

    kind: ClassVar[str] = "discarded"
    position: int
    left_at: int
    begins_at: int
    branch: int
    steps: int
    failures: int
    effects: int
    by: str
    why: str
    at: datetime
    can_undo: bool
    undone: bool
    repaired: bool = False
    newest: int | None = None

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
    """Time in which nothing happened before the item at ``position``."""

    kind: ClassVar[str] = "gap"
    position: int
    seconds: float


Item = StepItem | MessageItem | EventItem | EndItem | DiscardedItem | GapItem


def with_gaps(items: Sequence[Item]) -> list[Item]:
    """The items with a `GapItem` where nothing happened for `IDLE_SECONDS` or more."""
    spaced: list[Item] = []
    last: datetime | None = None
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
