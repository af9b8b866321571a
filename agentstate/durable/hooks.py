"""The hooks that make an agent's own loop durable. An asynchronous run has them run in its journal's thread.

| hook point  | hook, in this order   | what it does; what is committed                                       |
|-------------|-----------------------|-----------------------------------------------------------------------|
| before_run  | RestoreCheckpoint     | restores messages, state and counters of the last checkpoint; nothing |
|             | the user's, guarded   | run at the beginning of a turn only                                   |
| before_llm  | CommitStepStart       | the "start" checkpoint of a new turn, with the messages that begin it;|
|             |                       | the "step" checkpoint after the step before, now or together with the |
|             |                       | model's reply; ends the run when its slice is over, if asked to, or   |
|             |                       | at a breakpoint before the model                                      |
|             | the user's, guarded   | run once per step                                                     |
| before_tool | the user's            | one that asks for confirmation comes after a PlanAddedCalls           |
|             | PlanAddedCalls        | as planned, calls that hooks added                                    |
|             | ApprovalHook          | collects what needs approval; nothing                                 |
|             | CheckPendingCalls     | ends the run before any tool runs for a call in doubt, a missing      |
|             |                       | approval, a stop request or a breakpoint                              |
| after_tool  | the user's            |                                                                       |
|             | RecordRedactedResults | the calls whose policy is `redacted`, as ended                        |
| after_run   | the user's, guarded   | run at the end of a turn only                                         |
|             | CommitTurnEnd         | the "end" checkpoint with the final answer, and the end of the run;   |
|             |                       | later for an agent with a `run` of its own, see `own_answers`         |

The "prepared" checkpoint, if hooks have changed what the model sees, and the model's reply are committed by
`ReplayChatGenerator`, each tool call by `agentstate.durable.tools`. All hooks do
nothing outside a durable run.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Any

from haystack.components.agents.state import State
from haystack.components.agents.state.state import replace_values
from haystack.core.serialization import default_to_dict
from haystack.dataclasses import ChatMessage

from agentstate.domain.phases import AgentPhase
from agentstate.durable import (
    breakpoint_check,
    call_ends,
    doubts,
    effects,
    found_tools,
    nested_agents,
    run_context,
    tools,
)
from agentstate.durable.added_calls import plan_added_calls
from agentstate.durable.guards import BOUNDARY
from agentstate.durable.interruptions import in_thread
from agentstate.durable.progress import Meter
from agentstate.durable.records import AnsweredCall, CallRecord, Signals
from agentstate.durable.run_context import RunContext, Suspended
from agentstate.durable.run_end import Finished, Yielded, requested_end
from agentstate.durable.state.encoding import clean_text, decode, encode_lossy
from agentstate.durable.state.keys import same_json
from agentstate.names import (
    AGENT_GENERATOR,
    ENDED_CALL_STATES,
    PROMPT_PLACES,
    CallState,
    CheckpointKind,
    Decision,
)


class DurableHook:
    def run(self, state: State) -> None:
        run = run_context.current()
        if run is not None:
            self.apply(run, state)

    def apply(self, run: RunContext, state: State) -> None:
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        return default_to_dict(self)


class LoopRanTwice(Exception):
    """The agent's own `run` ran its loop a second time."""

    def __init__(self) -> None:
        super().__init__(
            "The run method of the agent runs its loop a second time, which cannot be recorded. A hook at on_exit can "
            "send the model back to work instead: it adds a message and sets continue_run."
        )


class RestoreCheckpoint(DurableHook):
    """
    :raises LoopRanTwice: if the agent's own code runs its loop again: what the journal holds is of the first.
    """

    def apply(self, run: RunContext, state: State) -> None:
        if run.loop_has_begun:
            raise LoopRanTwice
        run.loop_has_begun = True
        checkpoint = run.checkpoint
        if checkpoint is None or run.begins_turn:
            run.conversation.prompt.added(state.data["messages"])
            return
        state.set("messages", run.restored.messages, handler_override=replace_values)
        run.conversation.start_from(run.restored)
        run.conversation.prompt.restored(run.restored.messages, checkpoint.counters)
        # Not by `set`, which refuses a key that a hook has added beside the schema.
        state.data.update(run.keys.start_from(checkpoint.state))
        counters = {name: data for name, data in checkpoint.counters.items() if name != PROMPT_PLACES}
        for key, value in decode(counters).items():
            counts = {**state.data[key], **value} if key == "tool_call_counts" else value
            state.set(key, counts, handler_override=replace_values)
        if run.recorded_reply(AGENT_GENERATOR, 0) is not None:
            state.set("stop_run", None)  # the model was asked, so that a hook before it had cleared this
        found_tools.find_again(run.tool_items, state, checkpoint.tools)


class CommitStepStart(DurableHook):
    """
    :param context_may_change: Hooks of the user's follow, which may change what the model sees.
    """

    def __init__(self, *, context_may_change: bool = False) -> None:
        self.context_may_change = context_may_change

    def apply(self, run: RunContext, state: State) -> None:
        begin_turn(run, state)
        run.prepared_state = state if self.context_may_change else None
        is_stopping = state.data.get("stop_run") is not None
        if is_stopping and not self.context_may_change:
            return
        if run.checkpoint is not None and not run.begins_turn and run.step_is_committed:
            found_tools.check_found(run.tool_items, state, run.checkpoint.tools)
        if not run.step_is_committed:
            self._begin_step(run, state)
        elif run.has_unread and not run.has_reply and not run.context_is_committed:
            # An earlier run began this step, and its model has not replied: it reads the new messages too.
            run.commit(CheckpointKind.STEP, state)
        if run.end is None and run.signals.stop_request:
            run.end_run(requested_end(run.signals.stop_request))
        elif run.end is None and not is_stopping and (stopped := breakpoint_check.before_model(run)):
            run.end_run(stopped)
        if run.end is not None:
            state.set("stop_run", BOUNDARY)
            return
        run.step_is_committed = False
        for tool in state.data["tools"]:
            if run.policy(tool.name).redacted:
                call_ends.check_redactable(tool)
            nested_agents.check_kept(tool, run.policies)
            tools.attach(tool)

    def _begin_step(self, run: RunContext, state: State) -> None:
        run.to(AgentPhase.REFLECTING if run.calls else AgentPhase.PLANNING)
        run.step += 1
        run.meter.add("steps", 1)
        answered = _answered_calls(run, state)
        if run.slice_is_over():
            run.commit(CheckpointKind.STEP, state, answered=answered, run_end=Yielded())
        elif run.may_defer_checkpoints and run.signals == Signals():
            run.defer_checkpoint(state, answered)
        else:
            run.commit(CheckpointKind.STEP, state, answered=answered)
        run.context_is_committed = run.has_reply = False


class PlanAddedCalls(DurableHook):
    """Records the calls that the user's hooks have added to the model's, so that approvals apply to them."""

    def apply(self, run: RunContext, state: State) -> None:
        plan_added_calls(run, state)


class CheckPendingCalls(DurableHook):
    """Lets the tools of the step run, or suspends the run until people have decided about its calls.

    :raises Suspended: for the first of these that applies: calls in doubt, calls that need approval, a stop request, a
        breakpoint before one of the tools.
    """

    def apply(self, run: RunContext, state: State) -> None:
        plan_added_calls(run, state)
        run.tool_state = state
        messages = state.data.get("messages") or []
        calls = messages[-1].tool_calls if messages else []
        pending: list[CallRecord] = []
        for call in calls:
            record = run.calls[call.id or ""]
            arguments, _ = encode_lossy(call.arguments)
            sent = None if same_json(arguments, record.arguments) else arguments
            pending.append(record if sent is record.sent else run.update_call(record, sent=sent))
        _suspend_for_doubts(run, pending, state)
        effects.suspend_for_approvals(run, pending)
        if run.signals.stop_request:
            raise Suspended(requested_end(run.signals.stop_request))
        if stopped := breakpoint_check.before_tools(run, pending):
            raise Suspended(stopped)
        run.unmatched_calls = pending


class RecordRedactedResults(DurableHook):
    """Records the ends of the calls of which only what the user's hooks left of the result is stored."""

    def apply(self, run: RunContext, state: State) -> None:
        call_ends.record_what_hooks_left(run, state.data["messages"])


class CommitTurnEnd(DurableHook):
    """
    :raises Suspended: at a step boundary, if code of the agent's own follows: the turn that it would see has not ended.
    """

    def apply(self, run: RunContext, state: State) -> None:
        begin_turn(run, state)
        if state.data.get("exit_reason") == BOUNDARY:
            if run.ends_after_loop and run.end is not None:
                raise Suspended(run.end)
        elif run.ends_after_loop:
            run.final_state = state
        else:
            commit_turn_end(run, state)


def commit_turn_end(run: RunContext, state: State) -> None:
    """Commit the "end" checkpoint, and with it the end of the run."""
    begin_turn(run, state)
    reason = str(state.data.get("exit_reason"))
    # A copy: if the end cannot be committed, the run has not ended.
    meter = Meter(run.meter.progress(), run.clock)
    if meter.phase is AgentPhase.EXECUTING:
        meter.to(AgentPhase.REFLECTING)
    meter.to(AgentPhase.DONE)
    if run.has_reply:
        run.step += 1
        meter.add("steps", 1)
    next_turn = Meter(meter.progress(), run.clock)
    next_turn.to(AgentPhase.PLANNING)
    run.commit(
        CheckpointKind.END,
        state,
        answered=_answered_calls(run, state),
        run_end=Finished(
            final_answer=clean_text(_final_answer(state.data["messages"], reason)),
            exit_reason=clean_text(reason),
        ),
        meter=meter,
        next_turn=next_turn.progress(),
    )


def own_hook(point: str, *parts: Any) -> Any:
    """Our own hooks as one hook, which traces name ``agentstate.{point}``."""
    return type(f"agentstate.{point}", (_OwnHook,), {})(parts)


def run_of_users(hook: Any, run: Callable[..., Any], kwargs: dict[str, Any]) -> Any:
    """Around `run` of a user's hook that has no `run_async`: an asynchronous run calls it in a thread."""
    context = run_context.current()
    if context is None or threading.get_ident() == context.thread:
        return run(**kwargs)
    return in_thread(run, **kwargs)


class _OwnHook:
    def __init__(self, parts: Sequence[Any]) -> None:
        self.parts = parts

    def run(self, state: State) -> None:
        for part in self.parts:
            part.run(state)

    async def run_async(self, state: State) -> None:
        run = run_context.current()
        if run is not None:
            await run.journal_thread.run(self.run, state)

    def to_dict(self) -> dict[str, Any]:
        return default_to_dict(self)


def begin_turn(run: RunContext, state: State) -> None:
    """Commit the "start" checkpoint of a new turn, unless that is done."""
    if run.begins_turn and not run.turn_is_committed:
        run.commit(CheckpointKind.START, state)
        run.step_is_committed = run.turn_is_committed = True


def _suspend_for_doubts(run: RunContext, pending: list[CallRecord], state: State) -> None:
    """:raises Suspended: for calls that were started and may not be repeated."""
    calls = [record for record in pending if record.position not in run.started_calls]
    tools_at_hand = {tool.name: tool for tool in state.data["tools"]}
    if end := doubts.in_doubt(calls, lambda tool: run.policy(tool).idempotent, tools=tools_at_hand):
        raise Suspended(end)


def _answered_calls(run: RunContext, state: State) -> list[AnsweredCall]:
    """The calls that have an answer in the conversation without having run."""
    waiting = {
        call_id: record for call_id, record in run.calls.items() if record.status not in ENDED_CALL_STATES
    }
    answered = []
    for message in reversed(state.data["messages"]):
        if not waiting:
            break
        for result in message.tool_call_results:
            record = waiting.pop(result.origin.id or "", None)
            if record is not None:
                decision = record.approval.decision if record.approval is not None else ""
                refused = decision in (Decision.REJECTED, Decision.EXPIRED)
                status = CallState.REJECTED if refused else CallState.FAILED
                answered.append(AnsweredCall(record.position, status, clean_text(str(result.result))))
    return answered


def _final_answer(messages: list[ChatMessage], exit_reason: str) -> str:
    if not messages:
        return ""
    if messages[-1].is_from("assistant"):
        return messages[-1].text or ""
    for message in reversed(messages):
        for result in message.tool_call_results:
            if result.origin.tool_name == exit_reason:
                return str(result.result)
    return ""
