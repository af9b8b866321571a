"""Durable agents for scripts: any Haystack agent, with the journal of one session.

    shop = DurableAgent(agent, "session.jsonl", policies={"pay_back": ToolPolicy(approval=True)})
    print(shop.run("Where is my order 1042?").text)

The script may be killed at any moment and run again. Importing this needs no Haystack; making a `DurableAgent` does.
"""

import os
from collections.abc import Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from agentstate.articles import an
from agentstate.durable.breakpoints import Breakpoint
from agentstate.durable.cache import MemoryToolCache, ToolCache
from agentstate.durable.long_term import SharedMemory, using
from agentstate.durable.policy import ToolPolicy
from agentstate.durable.registry import AsyncOnly, Registration, registry
from agentstate.durable.steps import JournalThread, complete, complete_async
from agentstate.durable.streaming import shown_by
from agentstate.journals.decisions import NOT_GIVEN
from agentstate.library.given import check_registered_key, live_inputs
from agentstate.library.nesting import check_outside, held, run_of
from agentstate.library.outcomes import Outcome, PendingCall
from agentstate.library.turn_rules import TurnRules
from agentstate.library.unfinished import pending_calls

if TYPE_CHECKING:
    from haystack.components.agents import Agent
    from haystack.dataclasses import ChatMessage, StreamingCallbackT
    from haystack.tools import Tool, Toolset

    from agentstate.durable import agent as wrapping
    from agentstate.durable import run as running
    from agentstate.durable.records import CallRecord
    from agentstate.journals import MemoryJournal
    from agentstate.journals.going_back import SessionCheckpoint
    from agentstate.library.places import Place
    from agentstate.library.turn_rules import TurnRule

Record = dict[str, Any]


class DurableAgent:
    """An agent in one session, which outlives its processes.

    :param agent: Any Haystack agent. One that a registered factory built brings the policies of its registration, but
        a copy of it (`Agent.clone`) does not.
    :param journal: Where the session is kept: the path of a file, or a journal.
    :param policies: By tool; they add to those of the registration.
    :param cache: For tools with a `cache_ttl`; without one that of the journal; in memory or in a file it lives
        as long as this object. Sessions of one registered agent share it; an agent that is not registered shares
        cached results with no other session.
    :param memory: For the tools `remember` and `recall`, such as a `MemoryFile` of `agentstate.journals`.
    :raises AgentBuildFailed: for a policy that names a tool the agent lacks, or an argument the tool lacks; and for a
        state value or variable that has the name of a parameter of `run`.
    """

    def __init__(
        self,
        agent: "Agent",
        journal: "str | os.PathLike[str] | MemoryJournal | Place",
        *,
        policies: Mapping[str, ToolPolicy] | None = None,
        cache: ToolCache | None = None,
        memory: SharedMemory | None = None,
    ) -> None:
        from agentstate.durable.agent import make_durable

        self._begin(make_durable(agent, policies=policies), journal, cache, memory)

    @classmethod
    def of(
        cls,
        key: str,
        journal: "str | os.PathLike[str] | MemoryJournal | Place",
        *,
        cache: ToolCache | None = None,
        memory: SharedMemory | None = None,
    ) -> "DurableAgent":
        """The agent registered as `key`, with its policies: by a module that is imported, or in AGENTSTATE_AGENTS.

        :raises AgentNotRegistered: for an unknown key; AgentModuleMissing, if it may be that of a module of
            AGENTSTATE_AGENTS that cannot be imported.
        :raises AgentBuildFailed: if it cannot be built.
        """
        from agentstate.durable.agent import build

        check_registered_key(key)
        durable = cls.__new__(cls)
        durable._begin(build(_registration(key)), journal, cache, memory)
        return durable

    def _begin(
        self,
        wrapped: "wrapping.WrappedAgent",
        journal: Any,
        cache: ToolCache | None,
        memory: SharedMemory | None,
    ) -> None:
        from agentstate.durable.agent_checks import check_names
        from agentstate.library.places import place_of

        if not isinstance(memory, SharedMemory | None):
            raise TypeError(
                f"{an(memory, start=True)} is not a memory for a DurableAgent: it needs remember, recall and discard."
            )
        check_names(wrapped)
        self._wrapped = wrapped
        self._place = place_of(journal)
        if not isinstance(cache, ToolCache | None):
            raise TypeError(
                f"{an(cache, start=True)} is not a cache for a DurableAgent: it needs get and set, like "
                "MemoryToolCache."
            )
        self._memory = memory
        self._cache: ToolCache = cache or getattr(self._place, "cache", None) or MemoryToolCache()
        self._rules = TurnRules(wrapped, self._place, memory)

    @property
    def session_id(self) -> str:
        return self._place.session_id

    def to_dict(self) -> Record:
        """The user's agent as Haystack serialises it, which `Agent.from_dict` reads: give a `DurableAgent` the result.

        The session and the policies are not in it.
        """
        data: Record = self._wrapped.agent.to_dict()
        return data

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
        :raises TypeError: for messages, or anything else, of a type that a run cannot be given.
        :raises ValueError: without a message that the agent needs, without a variable that its prompts need, for a
            tool that it lacks, or if `key` stands for other messages.
        :raises NotStorable: for a value that cannot be stored.
        :raises AsyncOnly: for an agent that only `run_async` can run.
        :raises SessionInUse: within a run of the session, or on an event loop while it is being run.
        """
        given = {"state": state, "generation_kwargs": generation_kwargs, "tools": tools}
        live = live_inputs(self._wrapped.agent, streaming_callback, hook_context, break_point)
        return self._complete(self._rules.asked(messages, key, given), live)

    async def run_async(
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
        """As `run`, by the agent's `run_async`. The journal does not block the event loop."""
        given = {"state": state, "generation_kwargs": generation_kwargs, "tools": tools}
        live = live_inputs(self._wrapped.agent, streaming_callback, hook_context, break_point, is_async=True)
        return await self._complete_async(self._rules.asked(messages, key, given), live)

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
        :raises LookupError: if nothing was asked yet, or for a checkpoint that the session's history does not have.
        :raises AsyncOnly: for an agent that only `resume_async` can run.
        :raises SessionInUse: within a run of the session, or on an event loop while it is being run.
        :raises ValueError: for a change of what the agent's state does not have.
        """
        live = live_inputs(self._wrapped.agent, streaming_callback, hook_context, break_point)
        return self._complete(self._rules.resumed(at, changes or {}), live)

    async def resume_async(
        self,
        streaming_callback: "StreamingCallbackT | None" = None,
        *,
        hook_context: dict[str, Any] | None = None,
        break_point: "Breakpoint | Sequence[Breakpoint]" = (),
        at: "SessionCheckpoint | None" = None,
        changes: Mapping[str, Any] | None = None,
    ) -> Outcome:
        """As `resume`, by the agent's `run_async`."""
        live = live_inputs(self._wrapped.agent, streaming_callback, hook_context, break_point, is_async=True)
        return await self._complete_async(self._rules.resumed(at, changes or {}), live)

    def _complete(self, turns: "TurnRule", live: dict[str, Any]) -> Outcome:
        """
        :param live: What the runs are given that is not stored.
        """
        from agentstate.durable.run import run

        if self._wrapped.async_only:  # before anything is written
            raise AsyncOnly(self._wrapped.key, self._wrapped.async_only)
        with self._running(), using(self._memory), shown_by(None):
            return complete(turns, lambda journal: run(self._wrapped, journal, self._options(journal, live)))

    async def _complete_async(self, turns: "TurnRule", live: dict[str, Any]) -> Outcome:
        from agentstate.durable.run import run_async

        thread = JournalThread()

        async def answer(journal: "MemoryJournal") -> "running.Outcome":
            options = self._options(journal, live)
            with using(self._memory), shown_by(None):
                return await run_async(self._wrapped, journal, options, journal_thread=thread)

        try:
            with self._running():
                return await complete_async(turns, answer, thread)
        finally:
            thread.close()

    def _names(self) -> tuple[Hashable, ...]:
        from agentstate.library.places import identity_of

        return id(self._rules.lock), identity_of(self._place)

    def _running(self) -> AbstractContextManager[None]:
        return run_of(self.session_id, *self._names())

    def _options(self, journal: "MemoryJournal", live: dict[str, Any]) -> "running.Options":
        from agentstate.durable.run import Options

        store = journal.store
        return Options(cache=self._cache, session=store.name, attempt=store.failed_attempts + 1, **live)

    def decide(
        self,
        call_id: str,
        *,
        approve: bool | None = None,
        arguments: dict[str, Any] | None = None,
        result: Any = NOT_GIVEN,
        again: bool = False,
        skip: str = "",
        message: str = "",
    ) -> None:
        """Decide about a pending call, for the next `resume`.

        For one that needs approval: `approve` True (with `arguments` to change them) or False (with a `message` for the
        model). For one in doubt: its `result` (None is one), `again` to run it again, or `skip` with a message for the
        model. For one at a breakpoint: other `arguments`, with which it runs; or as for approval.

        :raises LookupError: if no call of that id waits for such a decision, with what it waits for.
        :raises NotStorable: for a result, or arguments, that cannot be stored.
        :raises SessionInUse: within a run of the session, or on an event loop while it is being run.
        :raises ValueError: for arguments that do not fit the tool.
        """
        check_outside(self.session_id, *self._names())
        with held(self._rules.lock, self.session_id), self._place.open() as journal:
            if arguments is not None and approve is not False:
                self._check_arguments(journal.store.step_calls_by_id().get(call_id), arguments)
            journal.decide(
                call_id,
                approve=approve,
                arguments=arguments,
                result=result,
                again=again,
                skip=skip,
                message=message,
            )

    def _check_arguments(self, call: "CallRecord | None", arguments: dict[str, Any]) -> None:
        """Like the desk's check. A tool that a toolset lists only at run time has no schema here."""
        from agentstate.durable.definition import tools_of
        from agentstate.durable.schemas import unfit_arguments

        tools = {tool.name: tool for tool in tools_of(self._wrapped.agent)}
        if call is None or call.tool not in tools:
            return
        schema = tools[call.tool].parameters
        if unfit := unfit_arguments(call.tool, schema, arguments, call.arguments):
            raise ValueError(unfit.why)

    # Reading

    def checkpoints(self) -> "list[SessionCheckpoint]":
        """The starts of the steps of the session, oldest first, for `resume`."""
        from agentstate.journals.going_back import checkpoints

        return checkpoints(self._place.read())

    def pending(self) -> list[PendingCall]:
        """The calls about which a person has to decide before the session continues."""
        return pending_calls(self._place.read(), self._wrapped.policies)

    def journal(self) -> "MemoryJournal":
        """The session as it is, in a journal for reading: what is written to it is not stored."""
        from agentstate.journals import MemoryJournal

        store = self._place.read()
        return MemoryJournal(store, store.epoch)

    def history(self) -> "list[ChatMessage]":
        """The conversation as the model sees it."""
        from agentstate.durable.state.chat_messages import message_from

        store = self._place.read()
        return [message_from(store.messages[position]) for position in store.context]


def _registration(key: str) -> Registration:
    modules = [name.strip() for name in os.environ.get("AGENTSTATE_AGENTS", "").split(",")]
    return registry.find(key, (name for name in modules if name))
