"""One run of a durable agent against a journal: restore, replay, record, end.

    outcome = run(make_durable(agent), FileJournal.open("session.json", say="Look up claim CLM-1042"))

`run` and `run_async` resume from what the journal holds and return when the turn has ended, a person is needed, or
the slice is over. They may be killed at any moment and called again, here or in another process.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from haystack.components.agents.tool_calling import ToolNotFoundException
from haystack.dataclasses import StreamingCallbackT

from agentstate.domain.phases import AgentPhase
from agentstate.durable import collector, doubts, run_context
from agentstate.durable.agent import WrappedAgent
from agentstate.durable.breakpoints import Breakpoint
from agentstate.durable.cache import ToolCache
from agentstate.durable.call_ends import record_unseen_failure
from agentstate.durable.definition import tool_items
from agentstate.durable.failures import ModelFailed, describe, retry_delay
from agentstate.durable.guards import BOUNDARY
from agentstate.durable.interruptions import contained, raised_by
from agentstate.durable.own_answers import has_own_run, record_answer
from agentstate.durable.port import Journal
from agentstate.durable.progress import Clock
from agentstate.durable.records import Snapshot, StoredCheckpoint
from agentstate.durable.registry import AsyncOnly
from agentstate.durable.run_context import RunContext, Suspended
from agentstate.durable.run_end import (
    AgentChanged,
    Failed,
    FailedModelCall,
    GaveUp,
    NothingToDo,
    RetryLater,
    RunEnd,
    Yielded,
)
from agentstate.durable.semantic_cache import ReplyStore
from agentstate.durable.semantic_questions import SemanticLookup
from agentstate.durable.state.chat_messages import BYTES_OF_MESSAGE, as_message
from agentstate.durable.state.conversation import Context
from agentstate.durable.state.encoding import clean_text, decode
from agentstate.durable.steps import JournalThread, Rule, complete, complete_async
from agentstate.durable.tracebacks import places_of

logger = logging.getLogger(__name__)


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """
    :param slice_is_over: Asked at each step boundary; True ends the run there, and the session stays queued.
    :param attempt: How often the session was claimed without progress, from 1.
    :param max_attempts: After so many attempts a failing model makes the session wait for a person.
    :param retry_seconds: Delay before the second attempt; it doubles with each.
    :param streaming_callback: As for `Agent.run`. A reply that is replayed is not streamed again.
    :param breakpoints: Where this run stops, besides the breakpoints of the session.
    :param hook_context: As for `Agent.run`: live objects for the hooks of this run. Nothing of it is stored.
    :param session: The name of the session: an agent without a key of its own shares cached results with no other.
    :param replies: The semantic cache, for an agent whose registration has one.
    :param context: `Outcome.context` of the run before, where the journal was told that it need not be read again.
    """

    cache: ToolCache | None = None
    clock: Clock = _now
    slice_is_over: Callable[[], bool] = field(default=lambda: False)
    attempt: int = 1
    max_attempts: int = 5
    retry_seconds: float = 2.0
    streaming_callback: StreamingCallbackT | None = None
    hook_context: dict[str, Any] | None = None
    breakpoints: tuple[Breakpoint, ...] = ()
    replies: ReplyStore | None = None
    context: Context | None = None
    session: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The session's status after the run, why it ended, and the agent's result if its turn has ended.

    The status is the journal's: "queued" also where a turn has ended and an unread message begins the next one. The
    context is what the model sees at the last checkpoint, where the run has given way at it: the next run in this
    process may go on with that instead of reading and building it. The run has begun with `began`.
    """

    status: str
    why: str = ""
    result: dict[str, Any] | None = None
    context: Context | None = None
    began: Context | None = None


def run(durable: WrappedAgent, journal: Journal, options: Options | None = None) -> Outcome:
    """Drive the session until the run ends.

    :raises AsyncOnly: for an agent that only `run_async` can run; nothing was written.
    :raises LeaseLost: if another worker has taken the session over; nothing more was written.
    :raises JournalUnavailable: if the journal cannot be reached.
    """
    if durable.async_only:
        raise AsyncOnly(durable.key, durable.async_only)

    def answer(start: _Start) -> dict[str, Any]:
        with contained(), _current(start.context):
            return durable.agent.run(**start.arguments)

    return complete(_run(durable, journal, options or Options()), answer)


async def run_async(
    durable: WrappedAgent,
    journal: Journal,
    options: Options | None = None,
    *,
    journal_thread: JournalThread | None = None,
) -> Outcome:
    """As `run`, by the agent's `run_async`. The journal is used in a thread, so that it does not block the event loop.

    Where the task is cancelled the session is as after the death of a process: it resumes from the journal. The task
    ends when its open tool calls have: those in threads cannot be cancelled.

    :param journal_thread: That of the caller, where it has one.
    """
    thread = journal_thread or JournalThread()

    async def answer(start: _Start) -> dict[str, Any]:
        with contained(), _current(start.context):
            try:
                return await durable.agent.run_async(**start.arguments)
            except BaseException:
                await start.context.open_calls.wait()
                raise

    try:
        return await complete_async(_run(durable, journal, options or Options(), thread), answer, thread)
    finally:
        if journal_thread is None:
            thread.close()


@dataclass(frozen=True, slots=True)
class _Start:
    """What the agent is to be run with."""

    context: RunContext
    arguments: dict[str, Any]


def _run(
    durable: WrappedAgent, journal: Journal, options: Options, thread: JournalThread | None = None
) -> Rule[_Start, dict[str, Any], Outcome]:
    """The run, except for the agent's own loop, which this yields for."""
    with ExitStack() as reading:
        reading.enter_context(collector.paused())
        return (yield from _read_and_run(durable, journal, options, thread, reading))


def _read_and_run(
    durable: WrappedAgent,
    journal: Journal,
    options: Options,
    thread: JournalThread | None,
    reading: ExitStack,
) -> Rule[_Start, dict[str, Any], Outcome]:
    """
    :param reading: Closed when the conversation is read and built.
    """
    if options.cache is None and any(policy.cache_ttl for policy in durable.policies.values()):
        logger.warning("The agent %s has tools with a cache_ttl, and runs without a cache.", durable.key)
    if options.replies is None and durable.semantic_cache is not None:
        logger.warning(
            "The agent %s has a semantic_cache, for which only the desk has a store: its model is always asked here.",
            durable.key,
        )
    snapshot = journal.load()
    context = RunContext(
        journal=journal,
        snapshot=snapshot,
        cache_scope=durable.key if durable.has_own_key else f"{options.session}:{durable.definition}",
        policies=durable.policies,
        definition=durable.definition,
        cache=options.cache,
        clock=options.clock,
        slice_is_over=options.slice_is_over,
        may_defer_checkpoints=durable.may_defer_checkpoints,
        starts_at_once=durable.agent.tool_concurrency_limit if durable.may_start_calls else 0,
        tool_items=tool_items(durable.agent),
        breakpoints=(*durable.breakpoints, *options.breakpoints),
        journal_thread=thread,
        semantic_cache=SemanticLookup(options.replies, durable.definition) if options.replies else None,
        ends_after_loop=has_own_run(durable.agent),
    )
    end = _end_before_start(context, snapshot, durable)
    if end is not None:
        return _end_run(context, end)
    if context.meter.phase in (AgentPhase.IDLE, AgentPhase.DONE, AgentPhase.ERROR):
        context.to(AgentPhase.PLANNING)
    try:
        arguments = {**_arguments(context, snapshot, durable, options.context), **_live_arguments(options)}
        del snapshot
        reading.close()
        result = yield _Start(context, arguments)
        if context.end is None:
            record_answer(context, durable.agent, arguments["messages"], result)
    except Suspended as suspended:
        # Haystack lets only the first of its parallel calls end the run, and has waited for the others.
        late_calls = context.late_calls
        return _end_run(context, doubts.late(late_calls) if late_calls else suspended.end)
    except ModelFailed as failure:
        return _end_run(context, _end_after_model_failure(context, failure, options))
    except Exception as error:
        logger.error("A run of the agent %s failed: %s", durable.key, places_of(raised_by(error)))
        position = context.position_of_failure(error)
        told = record_unseen_failure(context, position)
        context.to(AgentPhase.ERROR)
        failed = Failed(
            clean_text(describe(raised_by(error))) if told is None else told,
            tool_call=position,
            asks_again=isinstance(error, ToolNotFoundException) and context.no_call_started,
        )
        return _end_run(context, failed)
    if result.get("exit_reason") == BOUNDARY:
        return _outcome(context)
    return Outcome(context.status, result=result)


@contextmanager
def _current(context: RunContext) -> Iterator[None]:
    token = run_context.current_run.set(context)
    try:
        yield
    finally:
        run_context.current_run.reset(token)


def _end_before_start(context: RunContext, snapshot: Snapshot, durable: WrappedAgent) -> RunEnd | None:
    """The end of a run that has nothing to run; None for a run that has."""
    if context.begins_turn:
        is_asked = snapshot.checkpoint is None or snapshot.turn_is_asked
        if snapshot.unread or (is_asked and durable.agent.user_prompt is not None):
            return None  # the agent's own prompt begins a turn also without a message
        if context.meter.phase is AgentPhase.ERROR:
            context.to(AgentPhase.PLANNING)
        if context.meter.phase is AgentPhase.PLANNING:
            context.to(AgentPhase.DONE)
        return NothingToDo()
    if snapshot.definition and snapshot.definition != durable.definition:
        return doubts.in_doubt(
            snapshot.calls, lambda tool: context.policy(tool).idempotent, also="The agent has changed since."
        ) or AgentChanged(
            "The agent has changed since the session last ran. Resume to continue with the agent as it is now."
        )
    return None


def _live_arguments(options: Options) -> dict[str, Any]:
    live = {"streaming_callback": options.streaming_callback, "hook_context": options.hook_context}
    return {name: value for name, value in live.items() if value is not None}


def _arguments(
    context: RunContext, snapshot: Snapshot, durable: WrappedAgent, known: Context | None
) -> dict[str, Any]:
    """What `Agent.run` is called with, here as in a plain run of the same turn.

    :param known: The context of the checkpoint, where the snapshot leaves it out.
    """
    inputs = snapshot.inputs
    arguments: dict[str, Any] = decode(inputs.get("state") or {})
    if inputs.get("generation_kwargs"):
        arguments["generation_kwargs"] = decode(inputs["generation_kwargs"])
    if inputs.get("tools") is not None:
        arguments["tools"] = list(inputs["tools"])
    checkpoint = snapshot.checkpoint
    seen = _seen_at(checkpoint, known)
    if not context.begins_turn:
        context.restored = seen
        return {**arguments, "messages": seen.messages}
    before = seen.messages
    if checkpoint is not None:
        stored = context.keys.start_from(checkpoint.state)
        arguments = {**stored, **arguments} if snapshot.inputs_are_new else {**arguments, **stored}
        context.conversation.start_from(seen)
    prompt = context.conversation.prompt
    if checkpoint is not None and durable.agent.system_prompt is not None:
        prompt.restored(before, checkpoint.counters)
        before = prompt.without(before)
    new = []
    for unread in snapshot.unread:
        message = as_message(unread)
        context.conversation.from_unread(message, unread.id)
        new.append(message)
    messages = [*before, *new]
    prompt.before_turn(messages)
    return {**arguments, "messages": messages}


def _seen_at(checkpoint: StoredCheckpoint | None, known: Context | None) -> Context:
    if checkpoint is None:
        return Context([], [])
    if checkpoint.context_is_known:
        assert known is not None, "The journal has left out a context that nobody has."
        return known
    stored = checkpoint.context
    size = BYTES_OF_MESSAGE * len(stored) + sum(message.size for message in stored)
    return Context(
        [as_message(message) for message in stored], [message.position for message in stored], size
    )


def _end_after_model_failure(context: RunContext, failure: ModelFailed, options: Options) -> RunEnd:
    error = clean_text(str(failure))
    call = FailedModelCall(failure.name, failure.seq, error, failure.started_at, failure.ended_at)
    context.meter.add("failed_model_calls", 1)
    if not failure.transient:
        context.to(AgentPhase.ERROR)
        return Failed(error, failed_call=call)
    attempt = 1 if context.progressed else options.attempt
    if attempt >= options.max_attempts:
        why = f"The model failed {attempt} times without progress, at last with {error}"
        return GaveUp(why, failed_call=call)
    delay = retry_delay(failure.error, attempt, options.retry_seconds)
    why = f"The model failed (attempt {attempt} of {options.max_attempts}): {error}"
    return RetryLater(why, delay=delay, failed_call=call)


def _end_run(context: RunContext, end: RunEnd) -> Outcome:
    context.end_run(end)
    return _outcome(context)


def _outcome(context: RunContext) -> Outcome:
    """That of a run that has ended within its turn."""
    end = context.end
    seen = context.conversation.at_last_commit() if isinstance(end, Yielded) else None
    why = end.reason if end is not None else ""
    return Outcome(context.status, why, context=seen, began=context.restored)
