"""A step of the timeline: a checkpoint, and what happened from there to the next one. No queries."""

from dataclasses import dataclass, field
from datetime import datetime
from itertools import groupby
from typing import ClassVar

from agentstate.names import ENDED_CALL_STATES
from sessions_app.desk.pages.replacements import Replacement
from sessions_app.desk.pages.session.calls import CallItem
from sessions_app.finding import stuck
from sessions_app.models import Checkpoint, Event, EventKind, Message, ModelCall, Phase, Session, Status


@dataclass(frozen=True, slots=True)
class Failures:
    """Model calls that failed one after another with the same error; ``at`` is when the last one began.

    ``position`` is that of the first.
    """

    position: int
    error: str
    number: int
    at: datetime


@dataclass(frozen=True, slots=True)
class StepDetails:
    """``phases`` and ``models`` in words. ``model_calls``: the key of each, and how it is named."""

    phases: str
    models: str
    model_seconds: float
    model_calls: tuple[tuple[int, str], ...]


@dataclass(slots=True)
class StepItem:
    """A checkpoint, and what happened from there to the next one.

    retries: each tells that a failed model call of the step is tried again.
    doing: of a step that is running and has not begun: what it waits for, or why the session does not move.
    discarded_on: the number of the discarded branch on which it is shown beside the step of another branch that begins
        at the same checkpoint.
    """

    template: ClassVar[str] = "session/_step.html"
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
    discarded_on: int | None = None

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
    def anchor(self) -> str:
        """What the ids of its elements end with: no other step on a page has the same."""
        return f"{self.position}" if self.discarded_on is None else f"{self.position}-{self.discarded_on}"

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
    def details(self) -> StepDetails:
        return StepDetails(
            phases=" → ".join(self.phases),
            models=", ".join(self.models),
            model_seconds=self.model_seconds,
            model_calls=tuple([(call.pk, call.shown_as) for call in self.model_calls]),
        )

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
