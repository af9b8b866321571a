"""The records that a durable run hands to its journal and reads back. All values are plain JSON."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

Json = Any
CheckpointKind = Literal["start", "step", "prepared", "end"]
CallState = Literal["planned", "started", "doubt", "done", "failed", "rejected", "skipped"]


@dataclass(frozen=True, slots=True)
class Progress:
    """Where the agent is in the state machine, and the totals of the visible history so far."""

    phase: str
    previous: str
    since: datetime
    totals: dict[str, Json]


@dataclass(frozen=True, slots=True)
class StoredMessage:
    position: int
    body: dict[str, Json]


@dataclass(frozen=True, slots=True)
class InboxItem:
    id: int
    body: dict[str, Json]


@dataclass(frozen=True, slots=True)
class ApprovalRecord:
    """A person's answer: `decision` is "" while nobody answered; `arguments` are the edited ones, if any."""

    decision: Literal["", "approved", "rejected", "expired", "reused"]
    arguments: dict[str, Json] | None = None
    message: str = ""


@dataclass(frozen=True, slots=True)
class CallRecord:
    position: int
    call_id: str
    tool: str
    arguments: dict[str, Json]
    idempotency_key: str
    status: CallState = "planned"
    sent: dict[str, Json] | None = None
    result: Json = None
    error: str = ""
    state: dict[str, Json] | None = None
    attempt: int = 0
    approval: ApprovalRecord | None = None


@dataclass(frozen=True, slots=True)
class ReplyRecord:
    name: str
    seq: int
    messages: tuple[StoredMessage, ...]


@dataclass(frozen=True, slots=True)
class Base:
    """The checkpoint to go on from. `context` is what the model sees there, in order."""

    position: int
    kind: CheckpointKind
    step: int
    context: tuple[StoredMessage, ...]
    state: dict[str, Json]
    counters: dict[str, Json]
    tools: tuple[str, ...]
    definition: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that a run needs in order to go on: the base, and what was journaled since.

    `allowed` names the tools that a person has let run without being asked, for the rest of this session.
    """

    inputs: dict[str, Json]
    progress: Progress
    definition: str
    base: Base | None = None
    inbox: tuple[InboxItem, ...] = ()
    replies: tuple[ReplyRecord, ...] = ()
    calls: tuple[CallRecord, ...] = ()
    allowed: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Signals:
    """What others want of the run, as seen by its last commit."""

    stop_request: str = ""
    inbox: bool = False


@dataclass(frozen=True, slots=True)
class NewMessage:
    """A message to store: its body, or the inbox item that it is."""

    body: dict[str, Json] | None = None
    inbox_id: int | None = None


@dataclass(frozen=True, slots=True)
class Settled:
    """A call that ended without running: its tool is unknown, or a hook answered for it."""

    position: int
    status: CallState
    error: str


@dataclass(frozen=True, slots=True)
class Ask:
    """A call that needs a person's approval, with the arguments that would run.

    `repeats` is the position of the same call on a tail that was left behind, where it had its effect already.
    """

    position: int
    tool: str
    arguments: dict[str, Json]
    fingerprint: str
    ttl: float | None = None
    repeats: int | None = None


@dataclass(frozen=True, slots=True)
class FailedCall:
    """A model call that failed: kept for the timeline."""

    name: str
    seq: int
    error: str
    started_at: datetime
    ended_at: datetime


@dataclass(frozen=True, slots=True)
class Stop:
    """How a run lets go of its session.

    `status` is the session's next one; `delay` the seconds after which a queued one is due. `asks` and `doubts`
    (positions of calls) are what a waiting one waits for.
    """

    status: Literal["idle", "queued", "waiting", "paused", "cancelled"]
    event: str = ""
    waiting_for: str = ""
    why: str = ""
    error: str = ""
    delay: float = 0.0
    progress: Progress | None = None
    asks: tuple[Ask, ...] = ()
    doubts: tuple[int, ...] = ()
    failed: FailedCall | None = None
    final_answer: str = ""
    exit_reason: str = ""
    definition: str | None = None


@dataclass(frozen=True, slots=True)
class NewCheckpoint:
    """A checkpoint to commit.

    `messages` are new, in order, and get the next positions. `context` is None where the model sees all that it saw
    at the checkpoint before plus every message stored since; else the whole of what it sees: positions, and
    negative numbers for the new messages (-1 the first). `state` maps a changed key to {"set": value} or
    {"extend": items}. A "step" checkpoint folds what lies in the inbox into the context, behind the rest.
    With `stop` the run lets go of the session in the same commit; if the inbox is not empty at the end of a
    turn, the session stays queued instead, with `followup` as its progress. Without `fold` the inbox is left alone.
    """

    kind: CheckpointKind
    step: int
    progress: Progress
    messages: Sequence[NewMessage] = ()
    context: Sequence[int] | None = None
    state: dict[str, Json] = field(default_factory=dict)
    counters: dict[str, Json] = field(default_factory=dict)
    tools: tuple[str, ...] = ()
    settled: Sequence[Settled] = ()
    definition: str = ""
    stop: Stop | None = None
    followup: Progress | None = None
    fold: bool = True


@dataclass(frozen=True, slots=True)
class Committed:
    """The positions that new rows got, in the order they were given, and the inbox messages that were folded in."""

    positions: tuple[int, ...]
    signals: Signals
    folded: tuple[StoredMessage, ...] = ()


@dataclass(frozen=True, slots=True)
class NewCall:
    call_id: str
    tool: str
    arguments: dict[str, Json]


@dataclass(frozen=True, slots=True)
class NewReply:
    """A model's reply. `aside` is set for a generator other than the agent's own: its words are no part of the talk."""

    name: str
    seq: int
    messages: Sequence[dict[str, Json]]
    started_at: datetime
    ended_at: datetime
    progress: Progress
    aside: bool = False
    calls: Sequence[NewCall] = ()
    model: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0


@dataclass(frozen=True, slots=True)
class RepliedCommit:
    """The positions of the reply's messages, the records of its calls, and the checkpoint that went with it."""

    positions: tuple[int, ...]
    calls: tuple[CallRecord, ...]
    signals: Signals
    checkpoint: Committed | None = None


@dataclass(frozen=True, slots=True)
class CallEnd:
    """How a call ended: its status, and what there is to replay."""

    status: CallState
    ended_at: datetime
    result: Json = None
    error: str = ""
    state: dict[str, Json] | None = None
    lossy: bool = False
    cached: bool = False
