"""The run in progress in this thread: what the hooks, the generator and the tools share.

One `RunContext` lives as long as one `agent.run`. Tool threads inherit it through their context; a nested agent runs
without it, as one call. `lock` guards what calls change, each in its thread: the meter, the calls and the signals.
"""

import threading
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from haystack.tools import Tool, Toolset

from agentstate.domain.phases import AgentPhase
from agentstate.durable import found_tools
from agentstate.durable.breakpoints import Breakpoint
from agentstate.durable.cache import ToolCache
from agentstate.durable.interruptions import Interruption
from agentstate.durable.open_calls import NoOpenCalls, OpenCalls
from agentstate.durable.policy import DEFAULT, Policies, ToolPolicy, fingerprint
from agentstate.durable.port import Journal
from agentstate.durable.progress import Clock, Meter
from agentstate.durable.records import (
    AnsweredCall,
    CallRecord,
    CommittedCheckpoint,
    NewCheckpoint,
    Progress,
    ReplyRecord,
    Signals,
    Snapshot,
)
from agentstate.durable.run_end import ApprovalRequest, RunEnd
from agentstate.durable.state.chat_messages import as_message
from agentstate.durable.state.conversation import Change, Context, Conversation
from agentstate.durable.state.encoding import encode_lossy
from agentstate.durable.state.keys import StateKeys, counters_of
from agentstate.durable.steps import JournalThread
from agentstate.names import ENDED_CALL_STATES, CallState, CheckpointKind

if TYPE_CHECKING:
    from haystack.components.agents.state import State

    from agentstate.durable.call_ends import WithheldEnd
    from agentstate.durable.semantic_questions import SemanticLookup

current_run: ContextVar["RunContext | None"] = ContextVar("agentstate_run", default=None)


def current() -> "RunContext | None":
    """The durable run that this code is part of; None outside of one."""
    return current_run.get()


class Suspended(Interruption):
    """The run ends before the step does."""

    def __init__(self, end: RunEnd) -> None:
        super().__init__(end.reason)
        self.end = end


@dataclass(frozen=True, slots=True)
class _Draft:
    """A checkpoint that is to be committed, and what is known of the state once it is."""

    new: NewCheckpoint
    state: "State"
    change: Change
    changed_keys: dict[str, Any]


class RunContext:
    """
    :param slice_is_over: Asked at each step boundary; True ends the run there.
    :param may_defer_checkpoints: Whether the checkpoint of a step may be committed together with the model's reply.
    :param starts_at_once: How many calls may be recorded as started together with it, see `prompt_start`.
    :param tool_items: The agent's tools and toolsets, as it was given them.
    :param breakpoints: Those of this run; those of the session come with the snapshot and with each commit.
    :param journal_thread: Where an asynchronous run has its commits; None for a synchronous run.
    :param ends_after_loop: The turn ends when the agent's own `run` has returned.
    """

    def __init__(
        self,
        *,
        journal: Journal,
        snapshot: Snapshot,
        cache_scope: str,
        policies: Policies,
        definition: str,
        cache: ToolCache | None,
        clock: Clock,
        slice_is_over: Callable[[], bool],
        may_defer_checkpoints: bool = False,
        starts_at_once: int = 0,
        tool_items: Sequence[Tool | Toolset] = (),
        breakpoints: Sequence[Breakpoint] = (),
        journal_thread: JournalThread | None = None,
        semantic_cache: "SemanticLookup | None" = None,
        ends_after_loop: bool = False,
    ) -> None:
        self.journal = journal
        self.cache_scope = cache_scope
        self.policies = policies
        self.definition = definition
        self.cache = cache
        self.clock = clock
        self.slice_is_over = slice_is_over
        self.may_defer_checkpoints = may_defer_checkpoints
        self.starts_at_once = starts_at_once
        self.tool_items = tool_items
        self.journal_thread = journal_thread or JournalThread()
        self.semantic_cache = semantic_cache
        self.open_calls = OpenCalls() if journal_thread is not None else NoOpenCalls()
        self.search_tools = {found_tools.search_tool_name(item) for item in tool_items} - {None}
        self.allowed = snapshot.allowed
        self.meter = Meter(snapshot.progress, clock)
        self.conversation = Conversation()
        self.keys = StateKeys()
        self.lock = threading.RLock()
        self.thread = threading.get_ident()
        self.signals = Signals(breakpoints=snapshot.breakpoints)
        self.own_breakpoints = tuple(breakpoints)
        self.passed = snapshot.passed
        self._deferred: _Draft | None = None
        self.restored = Context([], [])  # built once: it may be long
        checkpoint = snapshot.checkpoint
        self.checkpoint = replace(checkpoint, context=()) if checkpoint is not None else None
        self.begins_turn = checkpoint is None or checkpoint.kind == CheckpointKind.END
        self.step = checkpoint.step if checkpoint else 0
        # Of the step at hand: are its first checkpoint, and the context that hooks made, committed? Has it a reply?
        self.step_is_committed = self.turn_is_committed = not self.begins_turn
        # The live State of the step, if hooks before the model may change what it sees.
        self.prepared_state: State | None = None
        self.context_is_committed = checkpoint is not None and checkpoint.kind == CheckpointKind.PREPARED
        self.has_reply = bool(snapshot.replies)
        self.has_unread = not self.begins_turn and bool(snapshot.unread)
        self.progressed = False
        self.loop_has_begun = False  # Haystack has warmed the hooks up
        self.ends_after_loop = ends_after_loop
        self.final_state: State | None = None  # of the loop that has ended, where the turn ends after it
        self.end: RunEnd | None = None
        self.status = "running"  # that of the session, once the run has ended

        self._replies = {(reply.name, reply.seq): reply for reply in snapshot.replies}
        self._next_seq: dict[str, int] = {}
        self.calls: dict[str, CallRecord] = {}
        # The positions of the calls of this step that the commit of the reply has started in this run.
        self.started_calls: set[int] = set()
        # The ids of calls that failed and ended their turn, and that a person lets be tried again.
        self.new_attempts: set[str] = set()
        for call in snapshot.calls:
            if call.call_id in self.calls:
                self.new_attempts.add(call.call_id)
            self.calls[call.call_id] = call
        self._failures: list[tuple[BaseException, int]] = []
        self.unmatched_calls: list[CallRecord] = []
        self.tool_state: State | None = None  # of the step whose calls run next, or run
        # Calls that exceeded their time limits and are in doubt: see `agentstate.durable.doubts.late`.
        self.late_calls: dict[int, tuple[Tool, str]] = {}
        self.approval_requests: list[ApprovalRequest] = []
        # Ends of calls that are recorded when the user's hooks have run: see `agentstate.durable.call_ends`.
        self.withheld: list[WithheldEnd] = []
        # Results whose recorded outputs the model gets, by their identity: see `agentstate.durable.tool_outputs`.
        self.delivered: dict[int, tuple[Any, dict[str, Any]]] = {}

    # Model replies

    def next_seq(self, name: str) -> int:
        """The index of this call of the generator within the step, from 0."""
        with self.lock:
            seq = self._next_seq.get(name, 0)
            self._next_seq[name] = seq + 1
            return seq

    def recorded_reply(self, name: str, seq: int) -> ReplyRecord | None:
        return self._replies.get((name, seq))

    # Tool calls

    def policy(self, tool: str) -> ToolPolicy:
        return self.policies.get(tool, DEFAULT)

    def call(self, call_id: str | None) -> CallRecord | None:
        return self.calls.get(call_id or "")

    def update_call(self, record: CallRecord, **changes: Any) -> CallRecord:
        with self.lock:
            record = self.calls[record.call_id] = replace(record, **changes)
            return record

    def note_failure(self, record: CallRecord, error: BaseException) -> None:
        """Note that this call raised the error, which ends the turn of an agent that raises what its tools raise."""
        with self.lock:
            self._failures.append((error, record.position))

    def position_of_failure(self, error: BaseException) -> int | None:
        """The position of the call that raised the error; None if no call did."""
        return next((position for raised, position in self._failures if raised is error), None)

    @property
    def no_call_started(self) -> bool:
        """Whether nothing that the model asked for in this step has run or begun to."""
        return all(call.status == CallState.PLANNED for call in self.calls.values())

    def request_approval(self, record: CallRecord, tool: str, arguments: dict[str, Any]) -> None:
        """Note that the call needs a person's approval. The run is suspended once all of the step are noted."""
        if any(request.position == record.position for request in self.approval_requests):
            return
        shown, _ = encode_lossy(arguments)
        self.approval_requests.append(
            ApprovalRequest(
                position=record.position,
                tool=tool,
                arguments=shown,
                fingerprint=fingerprint(tool, shown),
                ttl=self.policy(tool).approval_ttl,
            )
        )

    # Phases

    def to(self, *phases: AgentPhase) -> None:
        """Go through the phases, as the state machine allows; those that the run is in already are left out."""
        with self.lock:
            for phase in phases:
                if phase is not self.meter.phase:
                    self.meter.to(phase)

    def to_executing(self) -> None:
        """The model has asked for tools: whatever came before, they run next."""
        if self.meter.phase is not AgentPhase.EXECUTING:
            self.to(AgentPhase.PLANNING, AgentPhase.EXECUTING)

    def is_past_tools(self) -> bool:
        """Whether the tools of the step have run, and the phase says so."""
        ended = all(call.status in ENDED_CALL_STATES for call in self.calls.values())
        return ended and self.meter.phase is AgentPhase.REFLECTING

    # Commits

    def commit(
        self,
        kind: CheckpointKind,
        state: "State",
        *,
        answered: Iterable[AnsweredCall] = (),
        run_end: RunEnd | None = None,
        meter: Meter | None = None,
        next_turn: Progress | None = None,
    ) -> None:
        """Commit a checkpoint of the live state."""
        draft = self._draft(kind, state, answered, run_end=run_end, meter=meter, next_turn=next_turn)
        self._committed(draft, self.journal.checkpoint(draft.new))

    def commit_prepared_context(self) -> None:
        """Commit what the user's hooks before the model changed, so that they need not run again."""
        state = self.prepared_state
        if state is None or self.context_is_committed:
            return
        change = self.conversation.change(state.data["messages"])
        keys, _ = self.keys.changes(state.data)
        if change.context is not None or change.messages or keys:
            self.commit(CheckpointKind.PREPARED, state)
            self.context_is_committed = True

    def defer_checkpoint(self, state: "State", answered: Iterable[AnsweredCall]) -> None:
        """Prepare the checkpoint of a step that begins, to be committed together with the model's reply.

        All that it holds is in the journal already: a run that dies before the reply prepares it again.
        """
        self._deferred = self._draft(CheckpointKind.STEP, state, answered, read_unread=False)

    @property
    def deferred_checkpoint(self) -> NewCheckpoint | None:
        return self._deferred.new if self._deferred else None

    def deferred_checkpoint_committed(self, committed: CommittedCheckpoint | None) -> None:
        if self._deferred is not None and committed is not None:
            draft, self._deferred = self._deferred, None
            self._committed(draft, committed)

    def commit_deferred(self) -> None:
        """Commit the checkpoint of the step whose model has not replied, if it is not committed."""
        if self._deferred is not None:
            self.deferred_checkpoint_committed(self.journal.checkpoint(self._deferred.new))

    def end_run(self, end: RunEnd) -> None:
        """Record the end of the run, with the progress made; nothing if it is recorded already."""
        if self.end is None:
            self.commit_deferred()
            self.end = end
            self.status = self.journal.end_run(end, self.meter.progress())

    def now(self) -> datetime:
        return self.clock()

    def _draft(
        self,
        kind: CheckpointKind,
        state: "State",
        answered: Iterable[AnsweredCall],
        *,
        meter: Meter | None = None,
        **options: Any,
    ) -> _Draft:
        change = self.conversation.change(state.data["messages"])
        key_changes, changed_keys = self.keys.changes(state.data)
        by_calls = {key for call in self.calls.values() for key in call.state or ()}
        lost = self.keys.newly_lost({key: key_changes[key] for key in key_changes.keys() - by_calls})
        counters, _ = encode_lossy(counters_of(state.data, ends_turn=kind == CheckpointKind.END))
        counters |= self.conversation.prompt.in_counters(state.data["messages"])
        new = NewCheckpoint(
            kind=kind,
            step=self.step,
            progress=(meter or self.meter).progress(),
            messages=change.messages,
            context=change.context,
            state=key_changes,
            counters=counters,
            tools=tuple(tool.name for tool in state.data.get("tools") or ()),
            answered=tuple(answered),
            definition=self.definition,
            replaced_unread=change.replaced_unread,
            lost=lost,
            **options,
        )
        if kind != CheckpointKind.PREPARED:
            self._replies, self._next_seq, self.calls = {}, {}, {}
            self.unmatched_calls, self.approval_requests, self.delivered = [], [], {}
        return _Draft(new, state, change, changed_keys)

    def _committed(self, draft: _Draft, committed: CommittedCheckpoint) -> None:
        """Take what the checkpoint holds as known, and let the agent see the messages that it read."""
        self.progressed = True
        if draft.new.run_end is not None:
            self.end, self.status = draft.new.run_end, committed.status
        self.signals = committed.signals
        read = [(stored.position, as_message(stored)) for stored in committed.read]
        self.conversation.committed(draft.change, committed.positions, read)
        self.keys.committed(draft.changed_keys)
        if read:
            draft.state.set("messages", [message for _, message in read])
