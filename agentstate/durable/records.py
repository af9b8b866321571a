"""The records that a durable run hands to its journal and reads back. All values are plain JSON. Needs no Haystack."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, NamedTuple

from agentstate.durable.breakpoints import Breakpoint, Place
from agentstate.durable.run_end import RunEnd
from agentstate.durable.shown_state import FromState
from agentstate.names import CallState, CheckpointKind, Decision

Json = Any


def user_body(text: str) -> dict[str, Json]:
    """A user's message with this text, in the form in which Haystack writes a `ChatMessage`."""
    return {"role": "user", "meta": {}, "name": None, "content": [{"text": text}]}


@dataclass(frozen=True, slots=True)
class Progress:
    """The agent's phase, and the totals of the visible history so far. `since` is when the phase began."""

    phase: str
    previous: str
    since: datetime
    totals: dict[str, Json]


# What is read back


class StoredMessage(NamedTuple):
    """`body` is that of `ChatMessage.to_dict()`. `is_plain` says that nothing in it is tagged, and that it was read for
    this record alone, so that a message may be made of its parts. `size` are the bytes of the texts that it was read
    from, where they are known.
    """

    position: int
    body: dict[str, Json]
    is_plain: bool = False
    size: int = 0


@dataclass(frozen=True, slots=True)
class UnreadMessage:
    """A user message that no checkpoint has taken into the conversation yet."""

    id: int
    body: dict[str, Json]
    is_plain: bool = False


@dataclass(frozen=True, slots=True)
class ApprovalRecord:
    """An approval request, as answered: `decision` is "" while it is open; `arguments` are the edited ones, if any.

    `from_state` is what the request showed of the State, of which a journal need not return the values. `carried` says
    that nobody was asked about this call, a new attempt of one that failed: a person approved that one with these
    arguments. They run, and the call is approved only if nobody has to be asked about it.
    """

    decision: Decision | Literal[""]
    arguments: dict[str, Json] | None = None
    message: str = ""
    from_state: FromState | None = None
    carried: bool = False

    @property
    def edited(self) -> dict[str, Json] | None:
        """The arguments that run in place of those asked for, if the call is approved as it is; None for the same."""
        return self.arguments if self.decision in ("", Decision.APPROVED) else None


@dataclass(frozen=True, slots=True)
class CallRecord:
    """A tool call of the unfinished step.

    `arguments` are the model's; `sent` are those that run, where a person or a hook changed them. `state` maps each
    state key that the tool itself wrote to how it changed, as in `NewCheckpoint.state`. `attempt` counts the starts.
    """

    position: int
    call_id: str
    tool: str
    arguments: dict[str, Json]
    idempotency_key: str
    status: CallState = CallState.PLANNED
    sent: dict[str, Json] | None = None
    result: Json = None
    error: str = ""
    state: dict[str, Json] | None = None
    attempt: int = 0
    approval: ApprovalRecord | None = None

    @property
    def run_arguments(self) -> dict[str, Json]:
        """The arguments that the tool is called with."""
        return self.arguments if self.sent is None else self.sent

    @property
    def shown_arguments(self) -> dict[str, Json]:
        """The arguments that run as far as is known between two runs: those that a person has set, if any."""
        edited = self.approval.edited if self.sent is None and self.approval is not None else None
        return self.run_arguments if edited is None else edited


@dataclass(frozen=True, slots=True)
class EarlierEffects:
    """The calls of a tool that took effect where the session's history does not show it. None of them was undone.

    A call took effect if it is done, was started or is in doubt; a copy and its original are one effect. `calls` are
    the journal's own keys of those that the `EffectScope` covers, newest first. `repeats` is the newest with the same
    arguments. `needs_decision` says whether a person has to decide: about an effect that the scope repeats, or one
    that no approved request has shown.
    """

    calls: tuple[int, ...]
    repeats: int | None = None
    needs_decision: bool = True


@dataclass(frozen=True, slots=True)
class ReplyRecord:
    """The reply to call number `seq`, from 0, of the generator `name` in the unfinished step."""

    name: str
    seq: int
    messages: tuple[StoredMessage, ...]


@dataclass(frozen=True, slots=True)
class StoredCheckpoint:
    """The checkpoint to resume from. `context` is what the model sees there, in order; `step` counts finished steps.

    `context_is_known` says that the context was left out, since the caller has it from the run before, as
    `agentstate.durable.run.Options.context`.
    """

    position: int
    kind: CheckpointKind
    step: int
    context: tuple[StoredMessage, ...]
    state: dict[str, Json]
    counters: dict[str, Json]
    tools: tuple[str, ...]
    definition: str
    context_is_known: bool = False


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state to resume from: the last checkpoint, and what was journaled since.

    `definition` is the fingerprint that the agent must have; "" for any. `allowed` names the tools that are
    pre-approved for the rest of this session. `inputs_are_new` says that the inputs were given since the last turn, so
    that their state values replace those of the checkpoint; `turn_is_asked` that a turn is to begin, also without a
    message. `breakpoints` are those of the session, and `passed` is the place at which one of them has stopped it last,
    which does not stop it again.
    """

    inputs: dict[str, Json]
    progress: Progress
    definition: str
    checkpoint: StoredCheckpoint | None = None
    unread: tuple[UnreadMessage, ...] = ()
    replies: tuple[ReplyRecord, ...] = ()
    calls: tuple[CallRecord, ...] = ()
    allowed: frozenset[str] = frozenset()
    inputs_are_new: bool = False
    turn_is_asked: bool = False
    breakpoints: tuple[Breakpoint, ...] = ()
    passed: Place | None = None


@dataclass(frozen=True, slots=True)
class Signals:
    """What the last commit found: a stop request (of `STOP_REQUESTS`, or ""), whether there are unread messages, and
    the session's breakpoints.
    """

    stop_request: str = ""
    unread: bool = False
    breakpoints: tuple[Breakpoint, ...] = ()


# What is written


@dataclass(frozen=True, slots=True)
class NewMessage:
    """A message to store: its body, or the id of the unread message that it is; both, where a hook changed that one."""

    body: dict[str, Json] | None = None
    unread_id: int | None = None


@dataclass(frozen=True, slots=True)
class AnsweredCall:
    """A call that ended without running: its tool is unknown, or it was answered instead. `error` is the answer."""

    position: int
    status: CallState
    error: str


@dataclass(frozen=True, slots=True)
class NewCheckpoint:
    """A checkpoint to commit.

    `messages` are new, in order, and get the next positions. `context` is None where the model sees all that it saw
    at the checkpoint before plus every message stored since; else the whole of what it sees: positions, and
    negative numbers for the new messages (-1 the first). `state` maps a changed key to {"set": value} or
    {"extend": items}. A `STEP` checkpoint reads the unread messages into the context, behind the rest, unless
    `read_unread` is False. `replaced_unread` are the ids of unread messages that a hook has replaced or left out: they
    are read, and not stored. `lost` names the type of each key of `state` that holds, from now on and by no call of a
    tool, what cannot be stored as it is.

    With `run_end` the run ends in the same commit. If it is `Finished` and messages are unread, the session is queued
    for its next turn instead, with `next_turn` as its progress.
    """

    kind: CheckpointKind
    step: int
    progress: Progress
    messages: Sequence[NewMessage] = ()
    context: Sequence[int] | None = None
    state: dict[str, Json] = field(default_factory=dict)
    counters: dict[str, Json] = field(default_factory=dict)
    tools: tuple[str, ...] = ()
    answered: Sequence[AnsweredCall] = ()
    definition: str = ""
    run_end: RunEnd | None = None
    next_turn: Progress | None = None
    read_unread: bool = True
    replaced_unread: Sequence[int] = ()
    lost: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NewCall:
    """A tool call that the model, or a hook, asks for."""

    call_id: str
    tool: str
    arguments: dict[str, Json]


@dataclass(frozen=True, slots=True)
class NewReply:
    """A model's reply, and the calls that it asks for.

    `side_call` is set for a generator other than the agent's own: its messages are not part of the conversation.
    `start_calls` says that nothing stands between the reply and its calls: see `Journal.reply`. A reply from the
    semantic cache has a `source`, the id of the session that it comes from, and the `similarity` of the two questions.
    """

    name: str
    seq: int
    messages: Sequence[dict[str, Json]]
    started_at: datetime
    ended_at: datetime
    progress: Progress
    side_call: bool = False
    calls: Sequence[NewCall] = ()
    start_calls: bool = False
    model: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    source: str = ""
    similarity: float | None = None


@dataclass(frozen=True, slots=True)
class CallEnd:
    """How a call ended, and what a replay needs of it.

    `lossy` says that the result, or what the call wrote to the State, could not be stored exactly; `lost_type` of
    which type the result was, or something in it (see `state.encoding.lost_type`); the `state` itself names its types.
    `cached` says that the result came from the tool cache.
    """

    status: CallState
    ended_at: datetime
    result: Json = None
    error: str = ""
    state: dict[str, Json] | None = None
    lossy: bool = False
    lost_type: str = ""
    cached: bool = False


# What a commit returns


@dataclass(frozen=True, slots=True)
class CommittedCheckpoint:
    """The positions of the new messages, in the order they were given, and the unread messages that were read.

    `status` is the session's where the run ended in the same commit, and "" elsewhere.
    """

    positions: tuple[int, ...]
    signals: Signals
    read: tuple[StoredMessage, ...] = ()
    status: str = ""


@dataclass(frozen=True, slots=True)
class CommittedReply:
    """The positions of the reply's messages, the records of its calls, and the checkpoint committed with it."""

    positions: tuple[int, ...]
    calls: tuple[CallRecord, ...]
    signals: Signals
    checkpoint: CommittedCheckpoint | None = None
