"""The run that is going on in this thread: what the hooks, the generator and the ledger share.

One `RunContext` lives as long as one `agent.run`. Tool threads inherit it through their context; a nested agent runs
without it, as one call.
"""

import threading
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from haystack.dataclasses import ChatMessage

from agentstate.domain.phases import AgentPhase
from agentstate.durable.cache import ToolCache
from agentstate.durable.policy import DEFAULT, Policies, ToolPolicy, fingerprint
from agentstate.durable.port import Journal
from agentstate.durable.progress import Clock, Meter
from agentstate.durable.records import (
    Ask,
    Base,
    CallRecord,
    CheckpointKind,
    Committed,
    InboxItem,
    NewCheckpoint,
    Progress,
    ReplyRecord,
    Settled,
    Signals,
    Snapshot,
    Stop,
    StoredMessage,
)
from agentstate.durable.state.conversation import Change, Conversation
from agentstate.durable.state.encoding import encode_lossy, message_from
from agentstate.durable.state.keys import COUNTERS, StateKeys
from agentstate.names import ENDED_CALL_STATES

if TYPE_CHECKING:
    from haystack.components.agents.state import State

_current: ContextVar["RunContext | None"] = ContextVar("agentstate_run", default=None)


def current() -> "RunContext | None":
    return _current.get()


class Parked(BaseException):
    """The run stops until a person has decided. A BaseException: Haystack turns a tool's exceptions into messages."""

    def __init__(self, stop: Stop) -> None:
        super().__init__(stop.why)
        self.stop = stop


@dataclass(frozen=True, slots=True)
class _Held:
    """A checkpoint drawn up, and what to take as known once it is committed."""

    new: NewCheckpoint
    state: "State"
    change: Change
    fresh: dict[str, Any]


class RunContext:
    def __init__(
        self,
        *,
        journal: Journal,
        snapshot: Snapshot,
        agent_key: str,
        policies: Policies,
        definition: str,
        cache: ToolCache | None,
        clock: Clock,
        enough: Callable[[], bool],
        has_system_prompt: bool = False,
        holds: bool = False,
    ) -> None:
        self.journal = journal
        self.agent_key = agent_key
        self.policies = policies
        self.definition = definition
        self.cache = cache
        self.clock = clock
        self.enough = enough
        self.meter = Meter(snapshot.progress, clock)
        self.conversation = Conversation()
        self.keys = StateKeys()
        self.lock = threading.RLock()
        self.thread = threading.get_ident()
        self.base: Base | None = snapshot.base
        self.fresh_turn = snapshot.base is None or snapshot.base.kind == "end"
        self.prepared = snapshot.base is not None and snapshot.base.kind == "prepared"
        self.step = snapshot.base.step if snapshot.base else 0
        self.stepping = not self.fresh_turn
        self.signals = Signals()
        self.let_go = False
        self.stopped_as = "running"
        self.has_system_prompt = has_system_prompt
        self.holds = holds
        self._held: _Held | None = None
        self.replied = bool(snapshot.replies)
        self.unread = not self.fresh_turn and bool(snapshot.inbox)
        self.progressed = False
        self._replies = {(reply.name, reply.seq): reply for reply in snapshot.replies}
        self._seq: dict[str, int] = {}
        self.calls: dict[str, CallRecord] = {call.call_id: call for call in snapshot.calls}
        self.unclaimed: list[CallRecord] = []
        self.asked: list[Ask] = []
        self.allowed = snapshot.allowed

    # What the model said

    def next_seq(self, name: str) -> int:
        with self.lock:
            seq = self._seq.get(name, 0)
            self._seq[name] = seq + 1
            return seq

    def recorded_reply(self, name: str, seq: int) -> ReplyRecord | None:
        return self._replies.get((name, seq))

    # What the tools did

    def policy(self, tool: str) -> ToolPolicy:
        return self.policies.get(tool, DEFAULT)

    def call(self, call_id: str | None) -> CallRecord | None:
        return self.calls.get(call_id or "")

    def update_call(self, record: CallRecord, **changes: Any) -> CallRecord:
        with self.lock:
            record = replace(record, **changes)
            self.calls[record.call_id] = record
            return record

    def ask(
        self, call_id: str | None, tool: str, arguments: dict[str, Any], repeats: int | None = None
    ) -> None:
        """Note that a call needs a person's yes. All of a step are noted before the run is parked."""
        record = self.call(call_id)
        if record is not None and all(ask.position != record.position for ask in self.asked):
            shown, _ = encode_lossy(arguments)
            self.asked.append(
                Ask(
                    record.position,
                    tool,
                    shown,
                    fingerprint(tool, shown),
                    self.policy(tool).approval_ttl,
                    repeats,
                )
            )

    # Phases

    def to(self, *phases: AgentPhase) -> None:
        with self.lock:
            for phase in phases:
                if phase is not self.meter.phase:
                    self.meter.to(phase)

    def all_ended(self) -> bool:
        """Whether the tools of the step have run, and the session is known to be past them."""
        ended = all(call.status in ENDED_CALL_STATES for call in self.calls.values())
        return ended and self.meter.phase is AgentPhase.REFLECTING

    def executing(self) -> None:
        """The model has asked for tools: whatever came before, they run next."""
        if self.meter.phase is not AgentPhase.EXECUTING:
            self.to(AgentPhase.PLANNING, AgentPhase.EXECUTING)

    # Commits

    def commit(
        self,
        kind: CheckpointKind,
        state: "State",
        *,
        settled: Iterable[Settled] = (),
        stop: Stop | None = None,
        meter: Meter | None = None,
        followup: Progress | None = None,
    ) -> None:
        """Commit a checkpoint of the live state, and take it as known.

        :raises NotStorable: naming the state key, for a value that cannot be stored; nothing is written then.
        """
        held = self._draw_up(kind, state, settled, stop=stop, meter=meter, followup=followup)
        self._took(held, self.journal.checkpoint(held.new))

    def hold(self, state: "State", settled: Iterable[Settled]) -> None:
        """Draw up the checkpoint of a step that begins, to be committed together with the model's reply.

        All that it holds is in the journal already: a run that dies before the reply draws it up again.
        """
        self._held = self._draw_up("step", state, settled, fold=False)

    @property
    def held(self) -> NewCheckpoint | None:
        return self._held.new if self._held else None

    def held_committed(self, committed: Committed | None) -> None:
        if self._held is not None and committed is not None:
            held, self._held = self._held, None
            self._took(held, committed)

    def _draw_up(
        self,
        kind: CheckpointKind,
        state: "State",
        settled: Iterable[Settled],
        *,
        meter: Meter | None = None,
        **options: Any,
    ) -> "_Held":
        change = self.conversation.change(state.data["messages"])
        keys, fresh = self.keys.changes(state.data)
        counters, _ = encode_lossy({key: state.data.get(key) for key in COUNTERS})
        new = NewCheckpoint(
            kind=kind,
            step=self.step,
            progress=(meter or self.meter).progress(),
            messages=change.messages,
            context=change.context,
            state=keys,
            counters=counters,
            tools=tuple(tool.name for tool in state.data.get("tools") or ()),
            settled=tuple(settled),
            definition=self.definition,
            **options,
        )
        if kind != "prepared":
            self._replies, self._seq, self.calls = {}, {}, {}
            self.unclaimed, self.asked = [], []
        return _Held(new, state, change, fresh)

    def _took(self, held: "_Held", committed: Committed) -> None:
        self.progressed = True
        if held.new.stop is not None:
            self.let_go, self.stopped_as = True, held.new.stop.status
        self.signals = committed.signals
        folded = [(message.position, as_message(message)) for message in committed.folded]
        self.conversation.committed(held.change, committed.positions, folded)
        self.keys.committed(held.fresh)
        if folded:
            held.state.set("messages", [message for _, message in folded])

    def release(self, stop: Stop) -> None:
        """Let go of the session; the progress made goes with it."""
        if not self.let_go:
            if self._held is not None:
                self.held_committed(self.journal.checkpoint(self._held.new))
            self.let_go, self.stopped_as = True, stop.status
            self.journal.stop(replace(stop, progress=self.meter.progress()))

    def now(self) -> datetime:
        return self.clock()


def as_message(stored: StoredMessage | InboxItem) -> ChatMessage:
    return message_from(stored.body)
