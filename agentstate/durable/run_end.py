"""How a run ends: one type for each way, with exactly what the journal has to record of it.

Each type names the session's next status, what a waiting session waits for, and the kind of event that the audit trail
gets ("" for none). All values are plain JSON. Needs no Haystack.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar, Literal

from agentstate.durable.breakpoints import Breakpoint, Place
from agentstate.durable.shown_state import FromState
from agentstate.names import LATE, STOP_REQUESTS, Need, RunEvent, SessionStatus

Json = Any


@dataclass(frozen=True, slots=True)
class ApprovalRequest:
    """A call that needs a person's approval, with the arguments that would run.

    `ttl` is the number of seconds after which the request expires; None for never. `earlier` and `repeats` are those of
    `EarlierEffects`: what the person is shown. A call that was approved already is requested again where it would
    follow an effect that its request did not show. `from_state` is what the tool would be given from the State besides.
    """

    position: int
    tool: str
    arguments: dict[str, Json]
    fingerprint: str
    ttl: float | None = None
    earlier: tuple[int, ...] = ()
    repeats: int | None = None
    from_state: FromState | None = None


@dataclass(frozen=True, slots=True)
class FailedModelCall:
    """A model call that failed: recorded for the timeline, never replayed."""

    name: str
    seq: int
    error: str
    started_at: datetime
    ended_at: datetime


@dataclass(frozen=True, slots=True)
class RunEnd:
    """What all ends have in common. Only the types below are used."""

    status: ClassVar[SessionStatus]
    event: ClassVar[str] = ""
    waiting_for: ClassVar[Need | Literal[""]] = ""

    @property
    def reason(self) -> str:
        """Why the run ended, as a sentence for people; "" where the status says it all."""
        return ""


@dataclass(frozen=True, slots=True)
class ExplainedEnd(RunEnd):
    """An end of which people are told why. Only the types below are used."""

    why: str

    @property
    def reason(self) -> str:
        return self.why


@dataclass(frozen=True, slots=True)
class NothingToDo(RunEnd):
    """A turn was announced, but its message was read on another branch."""

    status = SessionStatus.IDLE


@dataclass(frozen=True, slots=True)
class Finished(RunEnd):
    """The turn has ended. `exit_reason` is Haystack's: "text", or the tool that was an exit condition."""

    status = SessionStatus.IDLE
    event = RunEvent.FINISHED
    final_answer: str = ""
    exit_reason: str = ""


@dataclass(frozen=True, slots=True)
class Failed(RunEnd):
    """The turn has ended with an error that another attempt would meet again.

    `tool_call` is the position of the tool call whose failure ended it, if one did: a person may let it be tried again.
    `asks_again`: the model's reply ended it, before any of its calls started. Where a person resumes, the step begins
    again without that reply.
    """

    status = SessionStatus.IDLE
    event = RunEvent.FAILED
    error: str
    failed_call: FailedModelCall | None = None
    tool_call: int | None = None
    asks_again: bool = False

    @property
    def reason(self) -> str:
        return self.error


@dataclass(frozen=True, slots=True)
class Yielded(RunEnd):
    """The slice of time is over: the session continues at once, with any worker."""

    status = SessionStatus.QUEUED


@dataclass(frozen=True, slots=True)
class RetryLater(ExplainedEnd):
    """The model failed in a way that may pass: another attempt is due in `delay` seconds."""

    status = SessionStatus.QUEUED
    event = RunEvent.RETRY
    delay: float
    failed_call: FailedModelCall | None = None


@dataclass(frozen=True, slots=True)
class GaveUp(ExplainedEnd):
    """The model failed too many times without progress: a person decides whether to try again."""

    status = SessionStatus.WAITING
    event = RunEvent.GAVE_UP
    waiting_for = Need.RETRIES
    failed_call: FailedModelCall | None = None


@dataclass(frozen=True, slots=True)
class NeedsApproval(ExplainedEnd):
    """Calls of the step wait for approval."""

    status = SessionStatus.WAITING
    event = RunEvent.ASKED
    waiting_for = Need.APPROVAL
    requests: tuple[ApprovalRequest, ...]


@dataclass(frozen=True, slots=True)
class InDoubt(ExplainedEnd):
    """The calls at these positions were started and may or may not have taken effect."""

    status = SessionStatus.WAITING
    event = RunEvent.IN_DOUBT
    waiting_for = Need.DOUBT
    calls: tuple[int, ...]


def were_started(tools: Iterable[str]) -> str:
    """How the reason begins for which calls of these tools are in doubt."""
    *first, last = sorted(set(tools))
    if first:
        return f"{', '.join(first)} and {last} were started and did not report back. They may"
    return f"{last} was started and did not report back. It may"


def were_late(sentences: Iterable[str]) -> str:
    """How the reason begins for calls in doubt that exceeded their time limits, of each of which a sentence says so."""
    late = sorted(set(sentences))
    return f"{' '.join(late)} {'They' if len(late) > 1 else 'It'} may"


def late_sentence(tool: str, why: str) -> str:
    """What the reason says of a call of the tool that exceeded its time limit; "" where it says no such thing."""
    return next((f"{part}." for part in why.split(". ") if part.startswith(f"{tool} {LATE} ")), "")


@dataclass(frozen=True, slots=True)
class AgentChanged(ExplainedEnd):
    """The agent is not the one of the last checkpoint, or cannot be built."""

    status = SessionStatus.WAITING
    event = RunEvent.CHANGED
    waiting_for = Need.CHANGED


@dataclass(frozen=True, slots=True)
class Paused(RunEnd):
    """A person asked the session to pause. Their reason is in the session already."""

    status = SessionStatus.PAUSED
    event = RunEvent.PAUSED


@dataclass(frozen=True, slots=True)
class AtBreakpoint(ExplainedEnd):
    """One or more breakpoints stopped the run at a place, which it goes on past once it is resumed.

    `calls` are the ids of the tool calls that meet a breakpoint, of all that wait there; none before the model.
    """

    status = SessionStatus.PAUSED
    event = RunEvent.BREAKPOINT
    place: Place
    breakpoints: tuple[Breakpoint, ...]
    calls: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Json]:
        """As plain JSON: what a session keeps of it."""
        return {
            **self.place.to_dict(),
            "calls": list(self.calls),
            "breakpoints": [breakpoint.to_dict() for breakpoint in self.breakpoints],
        }


@dataclass(frozen=True, slots=True)
class Cancelled(RunEnd):
    """A person asked the session to be cancelled. Their reason is in the session already."""

    status = SessionStatus.CANCELLED
    event = RunEvent.CANCELLED


def requested_end(stop_request: str) -> Paused | Cancelled:
    """The end that a person has requested: a key of `STOP_REQUESTS`."""
    status = STOP_REQUESTS[stop_request]
    return Paused() if status == Paused.status else Cancelled()
