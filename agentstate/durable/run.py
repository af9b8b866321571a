"""One run of a durable agent against a journal: restore, replay, record, stop.

    outcome = run(make_durable(agent), FileJournal.open("session.json", say="Look up claim CLM-1042"))

`run` goes on from what the journal holds and returns when the turn has ended, a person is needed, or enough was
done. It may be killed at any moment and called again, here or in another process.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from agentstate.domain.phases import AgentPhase
from agentstate.durable import run_context
from agentstate.durable.agent import DurableAgent
from agentstate.durable.cache import ToolCache
from agentstate.durable.failures import ModelFailed, describe, retry_delay
from agentstate.durable.hooks import BOUNDARY
from agentstate.durable.port import Journal
from agentstate.durable.progress import Clock
from agentstate.durable.records import FailedCall, Snapshot, Stop
from agentstate.durable.run_context import Parked, RunContext, as_message
from agentstate.durable.state.encoding import clean_text, decode


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """:param enough: Asked at each step boundary; True ends the slice there, and the session stays queued.
    :param attempt: How often the session was claimed without progress, from 1.
    :param max_attempts: After so many attempts a failing model hands the session to a person.
    :param retry_seconds: Delay before the second attempt; it doubles with each.
    """

    cache: ToolCache | None = None
    clock: Clock = _now
    enough: Callable[[], bool] = field(default=lambda: False)
    attempt: int = 1
    max_attempts: int = 5
    retry_seconds: float = 2.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of the session: the journal's status for it, and the agent's result where its turn has ended."""

    status: str
    why: str = ""
    result: dict[str, Any] | None = None


def run(durable: DurableAgent, journal: Journal, options: Options | None = None) -> Outcome:
    """Drive the session until it stops.

    :raises LeaseLost: if another worker has taken the session over; nothing more was written.
    :raises JournalUnavailable: if the journal cannot be reached.
    """
    options = options or Options()
    snapshot = journal.load()
    context = RunContext(
        journal=journal,
        snapshot=snapshot,
        agent_key=durable.key,
        policies=durable.policies,
        definition=durable.definition,
        cache=options.cache,
        clock=options.clock,
        enough=options.enough,
        has_system_prompt=durable.agent.system_prompt is not None,
        holds=durable.holds,
    )
    early = _nothing_to_do(context, snapshot, durable)
    if early is not None:
        journal.stop(early)
        return Outcome(early.status, early.why)
    if context.meter.phase in (AgentPhase.IDLE, AgentPhase.DONE, AgentPhase.ERROR):
        context.to(AgentPhase.PLANNING)

    token = run_context._current.set(context)
    try:
        result = durable.agent.run(**_arguments(context, snapshot))
    except Parked as parked:
        return _let_go(context, parked.stop)
    except ModelFailed as failure:
        return _let_go(context, _after_model_failure(context, failure, options))
    except Exception as error:
        context.to(AgentPhase.ERROR)
        return _let_go(context, Stop("idle", "failed", error=clean_text(describe(error))))
    finally:
        run_context._current.reset(token)
    if result.get("exit_reason") == BOUNDARY:
        return Outcome(context.stopped_as)
    return Outcome(context.stopped_as, result=result)


def _nothing_to_do(context: RunContext, snapshot: Snapshot, durable: DurableAgent) -> Stop | None:
    if context.fresh_turn and not snapshot.inbox:
        # A turn was announced, and its message read elsewhere: there is none.
        if context.meter.phase is AgentPhase.ERROR:
            context.to(AgentPhase.PLANNING)
        if context.meter.phase is AgentPhase.PLANNING:
            context.to(AgentPhase.DONE)
        return Stop("idle", progress=context.meter.progress())
    if context.fresh_turn:
        return None
    if snapshot.definition and snapshot.definition != durable.definition:
        return Stop(
            "waiting",
            "changed",
            waiting_for="changed",
            why=f"The agent has changed since the last checkpoint ({snapshot.definition[:8]} is now "
            f"{durable.definition[:8]}). Resume to go on with the agent as it is now.",
        )
    return None


def _arguments(context: RunContext, snapshot: Snapshot) -> dict[str, Any]:
    """What `Agent.run` is called with, here as in a plain run of the same turn."""
    inputs = snapshot.inputs
    arguments: dict[str, Any] = decode(inputs.get("state") or {})
    if inputs.get("generation_kwargs"):
        arguments["generation_kwargs"] = decode(inputs["generation_kwargs"])
    if inputs.get("tools"):
        arguments["tools"] = list(inputs["tools"])
    base = snapshot.base
    before = [as_message(stored) for stored in base.context] if base else []
    if not context.fresh_turn:
        return {**arguments, "messages": before}
    if base is not None:
        arguments.update(context.keys.start_from(base.state))
        context.conversation.start_from(before, [stored.position for stored in base.context])
    said = []
    for item in snapshot.inbox:
        message = as_message(item)
        context.conversation.from_inbox(message, item.id)
        said.append(message)
    return {**arguments, "messages": [*_without_system_prompt(context, before), *said]}


def _without_system_prompt(context: RunContext, messages: list[Any]) -> list[Any]:
    """The agent puts its system prompt in front of each turn: leave out the one that is there."""
    if not context.has_system_prompt:
        return messages
    first = next(
        (index for index, message in enumerate(messages) if not message.is_from("system")), len(messages)
    )
    return messages[first:]


def _after_model_failure(context: RunContext, failure: ModelFailed, options: Options) -> Stop:
    error = clean_text(str(failure))
    failed = FailedCall(failure.name, failure.seq, error, failure.started_at, failure.ended_at)
    if not failure.transient:
        context.to(AgentPhase.ERROR)
        return Stop("idle", "failed", error=error, failed=failed)
    attempt = 1 if context.progressed else options.attempt
    if attempt >= options.max_attempts:
        why = f"The model failed {attempt} times without progress, at last with {error}"
        return Stop("waiting", "gave_up", waiting_for="retries", why=why, failed=failed)
    delay = retry_delay(failure.error, attempt, options.retry_seconds)
    why = f"The model failed (attempt {attempt} of {options.max_attempts}): {error}"
    return Stop("queued", "retry", why=why, delay=delay, failed=failed)


def _let_go(context: RunContext, stop: Stop) -> Outcome:
    context.release(stop)
    return Outcome(stop.status, stop.why or stop.error)
