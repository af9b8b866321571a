"""Durable agents for scripts: any Haystack agent, with the journal of one session.

    shop = DurableAgent(agent, "session.jsonl", policies={"pay_back": ToolPolicy(approval=True)})
    print(shop.run("Where is my order 1042?").text)

The script may be killed at any moment and run again. Importing this needs no Haystack; making a `DurableAgent` does.
"""

import os
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from agentstate.durable.breakpoints import Breakpoint
from agentstate.durable.cache import MemoryToolCache, ToolCache
from agentstate.durable.policy import ToolPolicy
from agentstate.durable.registry import AgentNotRegistered, Registration, registry
from agentstate.library.outcomes import Answered, Outcome, PendingCall
from agentstate.library.unfinished import pending_calls, unfinished_outcome
from agentstate.names import RunEvent

if TYPE_CHECKING:
    from haystack.components.agents import Agent
    from haystack.dataclasses import ChatMessage, StreamingCallbackT
    from haystack.tools import Tool, Toolset

    from agentstate.durable import agent as wrapping
    from agentstate.journals import MemoryJournal
    from agentstate.journals.going_back import SessionCheckpoint
    from agentstate.journals.store import Store
    from agentstate.journals.turns import Turn
    from agentstate.library.places import Place

Record = dict[str, Any]


class DurableAgent:
    """An agent in one session, which outlives its processes.

    :param agent: Any Haystack agent. One that a registered factory built brings the policies of its registration.
    :param journal: Where the session is kept: the path of a file, or a journal.
    :param policies: By tool; they add to those of the registration.
    :param cache: For tools with a `cache_ttl`; without one that of the journal; in memory or in a file it lives
        as long as this object.
    :raises AgentBuildFailed: for a policy that names a tool the agent lacks, or an argument the tool lacks.
    """

    def __init__(
        self,
        agent: "Agent",
        journal: "str | os.PathLike[str] | MemoryJournal | Place",
        *,
        policies: Mapping[str, ToolPolicy] | None = None,
        cache: ToolCache | None = None,
    ) -> None:
        from agentstate.durable.agent import make_durable

        self._begin(make_durable(agent, policies=policies), journal, cache)

    @classmethod
    def of(
        cls,
        key: str,
        journal: "str | os.PathLike[str] | MemoryJournal | Place",
        *,
        cache: ToolCache | None = None,
    ) -> "DurableAgent":
        """The agent registered as `key`, with its policies: by a module that is imported, or in AGENTSTATE_AGENTS.

        :raises AgentNotRegistered: for an unknown key.
        :raises AgentBuildFailed: if it cannot be built.
        """
        from agentstate.durable.agent import build

        durable = cls.__new__(cls)
        durable._begin(build(_registration(key)), journal, cache)
        return durable

    def _begin(self, wrapped: "wrapping.WrappedAgent", journal: Any, cache: ToolCache | None) -> None:
        from agentstate.library.places import place_of

        self._wrapped = wrapped
        self._place = place_of(journal)
        self._cache: ToolCache = cache or getattr(self._place, "cache", None) or MemoryToolCache()
        self._lock = threading.Lock()
        self._live: dict[str, Any] = {}  # what the run in progress was given that is not stored

    @property
    def session_id(self) -> str:
        return self._place.session_id

    # Running

    def run(
        self,
        messages: "str | ChatMessage | Sequence[ChatMessage] | None" = None,
        streaming_callback: "StreamingCallbackT | None" = None,
        *,
        key: str = "",
        generation_kwargs: Mapping[str, Any] | None = None,
        tools: "Sequence[str | Tool] | Toolset | None" = None,
        hook_context: dict[str, Any] | None = None,
        break_point: "Breakpoint | Sequence[Breakpoint]" = (),
        **state: Any,
    ) -> Outcome:
        """Ask the agent, or continue where an earlier process stopped, until the turn ends or a person is needed.

        An unfinished turn that began with equal messages is resumed. One with other messages is resumed first, and
        these are the next turn. Without a `key` messages are asked again once their turn has ended. With one they are
        asked once: later calls return the answer on record.

        :param messages: None (or []) for an agent that has a `user_prompt`.
        :param streaming_callback: As for `Agent.run`, like `hook_context`: live objects, of which nothing is stored.
        :param key: A name for this turn in the session.
        :param tools: Those of the agent's tools that this turn may use, by name or as the agent's own objects.
        :param break_point: Where this call stops, with the outcome `AtBreakpoint`. It continues by `resume` only.
        :param state: Values of the agent's state and of its prompts' variables, as for `Agent.run`. In a later turn
            they replace those that the session has.
        :raises ValueError: without a message that the agent needs, without a variable that its prompts need, for a
            tool that it lacks, or if `key` stands for other messages.
        :raises NotStorable: for a value that cannot be stored.
        """
        from agentstate.durable.inputs import check_variables, encoded, tool_names

        agent = self._wrapped.agent
        bodies = _bodies(messages, may_be_empty=agent.user_prompt is not None)
        check_variables(agent, state)
        chosen = {"state": state, "generation_kwargs": generation_kwargs, "tools": tool_names(agent, tools)}
        inputs = encoded(chosen)
        with self._lock, self._place.open() as journal:
            self._live = _live(streaming_callback, hook_context, break_point)
            store = journal.store
            earlier_turn = store.turns.by_key(key) if key else None
            if earlier_turn is not None:
                if earlier_turn.messages != bodies:
                    raise ValueError(f"The key {key!r} stands for other messages in this session.")
                if earlier_turn is not store.turns.unfinished:
                    return self._on_record(store, earlier_turn)
                return self._continue(journal)
            unfinished = store.turns.unfinished
            if unfinished is not None and not key and unfinished.messages == bodies:
                return self._continue(journal)
            if unfinished is not None and not unfinished.failed:
                earlier = self._continue(journal, accepted=False)
                if not earlier.finished:
                    return earlier
            _ask(store, bodies, key, inputs)
            return self._drive(journal)

    def resume(
        self,
        streaming_callback: "StreamingCallbackT | None" = None,
        *,
        hook_context: dict[str, Any] | None = None,
        break_point: "Breakpoint | Sequence[Breakpoint]" = (),
        at: "SessionCheckpoint | None" = None,
        changes: Mapping[str, Any] | None = None,
    ) -> Outcome:
        """Continue the unfinished turn, also past a breakpoint; where it waits because the agent has changed, with the
        agent as it is now.

        A tool call whose failure ended the turn is tried again, by approval unless its tool is idempotent.
        Returns the answer on record if the last turn has ended.

        :param at: One of `checkpoints`, from which the session goes on. What came after it is discarded; a call that
            would repeat an effect of a discarded one needs approval.
        :param changes: Values of the agent's state there, as `run` takes them, and under ``messages`` the conversation.
            Without `at` the unfinished step begins again with them.
        :raises LookupError: if nothing was asked yet.
        :raises ValueError: for a change of what the agent's state does not have.
        """
        from agentstate.durable.inputs import encoded_changes

        state, messages = encoded_changes(self._wrapped.agent, changes or {})
        with self._lock, self._place.open() as journal:
            self._live = _live(streaming_callback, hook_context, break_point)
            if at is not None or changes:
                journal.go_back(at.position if at is not None else None, state, messages)
            turns = journal.store.turns
            if turns.unfinished is None:
                if not turns.all:
                    raise LookupError("Nothing was asked in this session yet.")
                return self._on_record(journal.store, turns.all[-1])
            with suppress(LookupError):  # otherwise there is nothing of the kind to be said
                journal.resume()
            return self._drive(journal)

    def decide(
        self,
        call_id: str,
        *,
        approve: bool | None = None,
        arguments: dict[str, Any] | None = None,
        result: Any = None,
        again: bool = False,
        skip: str = "",
        message: str = "",
    ) -> None:
        """Decide about a pending call, for the next `resume`.

        For one that needs approval: `approve` True (with `arguments` to change them) or False (with a `message` for the
        model); a call at a breakpoint may be decided in the same way. For one in doubt: its `result`, `again` to run it
        again, or `skip` with a message for the model.

        :raises LookupError: if no such call waits.
        """
        with self._lock, self._place.open() as journal:
            journal.decide(
                call_id,
                approve=approve,
                arguments=arguments,
                result=result,
                again=again,
                skip=skip,
                message=message,
            )

    # Reading

    def checkpoints(self) -> "list[SessionCheckpoint]":
        """The starts of the steps of the session, oldest first, for `resume`."""
        from agentstate.journals.going_back import checkpoints

        return checkpoints(self._place.read())

    def pending(self) -> list[PendingCall]:
        """The calls about which a person has to decide before the session continues."""
        return self._pending(self._place.read())

    def journal(self) -> "MemoryJournal":
        """The session as it is, in a journal for reading: what is written to it is not stored."""
        from agentstate.journals import MemoryJournal

        store = self._place.read()
        return MemoryJournal(store, store.epoch)

    def history(self) -> "list[ChatMessage]":
        """The conversation as the model sees it."""
        from agentstate.durable.state.encoding import message_from

        store = self._place.read()
        return [message_from(store.messages[position]) for position in store.context]

    def _pending(self, store: "Store") -> list[PendingCall]:
        return pending_calls(store, self._wrapped.policies)

    def _continue(self, journal: "MemoryJournal", *, accepted: bool = True) -> Outcome:
        """Go on with the unfinished turn, unless it waits at a breakpoint."""
        store = journal.store
        if store.is_at_breakpoint:
            return self._unfinished(store, store.last_end, accepted)
        return self._drive(journal, accepted=accepted)

    def _drive(self, journal: "MemoryJournal", *, accepted: bool = True) -> Outcome:
        """Run until no turn is unfinished, or a person is needed. Unread messages behind a turn begin another one."""
        from agentstate.durable.run import Options, run

        store = journal.store
        while True:
            options = Options(cache=self._cache, attempt=store.failed_attempts + 1, **self._live)
            result = run(self._wrapped, journal, options).result
            end = store.last_end
            if end["event"] != RunEvent.FINISHED:
                return self._unfinished(store, end, accepted)
            if store.turns.unfinished is None:
                return Answered(result) if result is not None else self._on_record(store, store.turns.all[-1])

    def _unfinished(self, store: "Store", end: Record, accepted: bool) -> Outcome:
        return unfinished_outcome(store, end, accepted, self._wrapped.policies)

    def _on_record(self, store: "Store", turn: "Turn") -> Outcome:
        """What `Agent.run` returned at the end of this turn, from the journal."""
        from agentstate.durable.state.encoding import decode, message_from

        if not turn.finished:
            return self._unfinished(store, turn.end, accepted=True)
        messages = [message_from(store.messages[position]) for position in turn.context]
        counters = decode(turn.counters)
        return Answered(
            {
                **decode(turn.state),
                **{name: counters[name] for name in ("step_count", "token_usage", "tool_call_counts")},
                "exit_reason": turn.end["exit_reason"],
                "messages": messages,
                "last_message": messages[-1] if messages else None,
            }
        )


def _live(
    streaming_callback: Any, hook_context: Any, break_point: "Breakpoint | Sequence[Breakpoint]"
) -> dict[str, Any]:
    """What a run is given that is not stored."""
    breakpoints = (break_point,) if isinstance(break_point, Breakpoint) else tuple(break_point)
    return {
        "streaming_callback": streaming_callback,
        "hook_context": hook_context,
        "breakpoints": breakpoints,
    }


def _registration(key: str) -> Registration:
    try:
        return registry.get(key)
    except AgentNotRegistered:
        modules = [name.strip() for name in os.environ.get("AGENTSTATE_AGENTS", "").split(",")]
        registry.load(name for name in modules if name)
        return registry.get(key)


def _bodies(messages: "str | ChatMessage | Sequence[ChatMessage] | None", may_be_empty: bool) -> list[Record]:
    from haystack.dataclasses import ChatMessage

    from agentstate.durable.state.encoding import message_body

    if isinstance(messages, str):
        messages = [ChatMessage.from_user(messages)] if messages else []
    elif isinstance(messages, ChatMessage):
        messages = [messages]
    if not messages and not may_be_empty:
        raise ValueError("There is no message to run the agent with.")
    return [message_body(message) for message in messages or ()]


def _ask(store: "Store", bodies: list[Record], key: str, inputs: Record) -> None:
    from agentstate.journals.store import ask

    with store.lock:
        ask(store, bodies, key=key, inputs=inputs)
