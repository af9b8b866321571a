"""The hooks that make an agent's own loop durable, and the guard around the user's hooks.

    before_run   Restore, the user's, Begin        go on from the checkpoint; commit the start of a turn
    before_llm   Gate, the user's, Seal            commit the step that ended; commit what hooks made of the context
    before_tool  the user's, approvals, Register   park for people before any tool runs
    after_run    the user's, Finish                commit the end of the turn

All of them do nothing outside a durable run.
"""

from typing import Any

from haystack.components.agents.state import State
from haystack.components.agents.state.state import replace_values
from haystack.core.serialization import default_to_dict
from haystack.dataclasses import ChatMessage
from haystack.tools import Tool

from agentstate.domain.phases import AgentPhase
from agentstate.durable import run_context, tools
from agentstate.durable.progress import Meter
from agentstate.durable.records import CallRecord, NewCall, Settled, Signals, Stop
from agentstate.durable.run_context import Parked, RunContext, as_message
from agentstate.durable.state.encoding import clean_text, decode, encode_lossy
from agentstate.names import ENDED_CALL_STATES

BOUNDARY = "agentstate:step_boundary"


class DurableHook:
    def run(self, state: State) -> None:
        run = run_context.current()
        if run is not None:
            self.act(run, state)

    def act(self, run: RunContext, state: State) -> None:
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        return default_to_dict(self)


class Restore(DurableHook):
    def act(self, run: RunContext, state: State) -> None:
        base = run.base
        if base is None or run.fresh_turn:
            return
        messages = [as_message(stored) for stored in base.context]
        state.set("messages", messages, handler_override=replace_values)
        run.conversation.start_from(messages, [stored.position for stored in base.context])
        for key, value in run.keys.start_from(base.state).items():
            state.set(key, value, handler_override=replace_values)
        for key, value in decode(base.counters).items():
            counts = {**state.data[key], **value} if key == "tool_call_counts" else value
            state.set(key, counts, handler_override=replace_values)
        _find_tools_again(state, base.tools)


class Begin(DurableHook):
    def act(self, run: RunContext, state: State) -> None:
        if run.fresh_turn:
            run.commit("start", state)
            run.stepping = True


class Gate(DurableHook):
    def act(self, run: RunContext, state: State) -> None:
        if state.data.get("stop_run") is not None:
            return
        if not run.stepping:
            run.to(AgentPhase.REFLECTING if run.calls else AgentPhase.PLANNING)
            run.step += 1
            run.meter.add("steps", 1)
            settled = _settled(run, state)
            if run.enough():
                run.commit("step", state, settled=settled, stop=Stop("queued"))
            elif run.holds and run.signals == Signals():
                run.hold(state, settled)
            else:
                run.commit("step", state, settled=settled)
            run.prepared = run.replied = False
        elif run.unread and not run.replied and not run.prepared:
            run.commit("step", state)
        if not run.let_go and run.signals.stop_request:
            run.release(requested_stop(run))
        if run.let_go:
            state.set("stop_run", BOUNDARY)
            return
        run.stepping = False
        for tool in state.data["tools"]:
            tools.attach(tool)


class Seal(DurableHook):
    """Commits what the user's hooks before the model changed, so that they need not run again."""

    def act(self, run: RunContext, state: State) -> None:
        if run.prepared or state.data.get("stop_run") is not None:
            return
        change = run.conversation.change(state.data["messages"])
        keys, _ = run.keys.changes(state.data)
        if change.context is not None or change.messages or keys:
            run.commit("prepared", state)
            run.prepared = True


class Register(DurableHook):
    def act(self, run: RunContext, state: State) -> None:
        messages = state.data.get("messages") or []
        calls = messages[-1].tool_calls if messages else []
        missing = [call for call in calls if run.call(call.id) is None]
        if missing:
            added = [
                NewCall(call.id or "", call.tool_name, encode_lossy(call.arguments)[0]) for call in missing
            ]
            run.calls.update({record.call_id: record for record in run.journal.plan(added)})
        pending: list[CallRecord] = []
        for call in calls:
            record = run.calls[call.id or ""]
            told, _ = encode_lossy(call.arguments)
            pending.append(run.update_call(record, sent=None if told == record.arguments else told))
        doubts = [
            record
            for record in pending
            if record.status in ("started", "doubt") and not run.policy(record.tool).idempotent
        ]
        if doubts:
            names = ", ".join(sorted({record.tool for record in doubts}))
            raise Parked(
                Stop(
                    "waiting",
                    "in_doubt",
                    waiting_for="doubt",
                    why=f"{names} was started and did not report back. Nobody knows whether it took effect.",
                    doubts=tuple(record.position for record in doubts),
                )
            )
        _hold_repetitions(run, pending)
        if run.asked:
            asked = {ask.position for ask in run.asked}
            names = ", ".join(sorted({record.tool for record in pending if record.position in asked}))
            why = f"{names} needs a person's yes."
            if any(ask.repeats is not None for ask in run.asked):
                why += " It was run with the same arguments before the session was taken back."
            raise Parked(Stop("waiting", "asked", waiting_for="approval", why=why, asks=tuple(run.asked)))
        if run.signals.stop_request:
            raise Parked(requested_stop(run))
        run.unclaimed = pending


class Finish(DurableHook):
    def act(self, run: RunContext, state: State) -> None:
        reason = state.data.get("exit_reason")
        if reason == BOUNDARY:
            return
        # On a copy: if the end cannot be committed, the run is not done.
        done = Meter(run.meter.progress(), run.clock)
        if done.phase is AgentPhase.EXECUTING:
            done.to(AgentPhase.REFLECTING)
        done.to(AgentPhase.DONE)
        if run.replied:
            run.step += 1
            done.add("steps", 1)
        followup = Meter(done.progress(), run.clock)
        followup.to(AgentPhase.PLANNING)
        stop = Stop(
            "idle",
            "finished",
            final_answer=clean_text(_answer(state.data["messages"], str(reason))),
            exit_reason=clean_text(str(reason)),
        )
        run.commit(
            "end", state, settled=_settled(run, state), stop=stop, meter=done, followup=followup.progress()
        )


class Guarded:
    """A user's hook, kept from running again on a resumed step where an undisturbed run would not run it."""

    def __init__(self, inner: Any, point: str) -> None:
        self.inner = inner
        self.point = point
        allowed = getattr(inner, "allowed_hook_points", None)
        if allowed is not None:
            self.allowed_hook_points = allowed

    def run(self, state: State) -> None:
        run = run_context.current()
        if run is None or not self._skips(run, state):
            self.inner.run(state)

    def _skips(self, run: RunContext, state: State) -> bool:
        if self.point == "before_run":
            return not run.fresh_turn
        if self.point == "before_llm":
            return run.prepared or state.data.get("stop_run") == BOUNDARY
        return bool(state.data.get("exit_reason") == BOUNDARY)

    def warm_up(self) -> None:
        if hasattr(self.inner, "warm_up"):
            self.inner.warm_up()

    def close(self) -> None:
        if hasattr(self.inner, "close"):
            self.inner.close()

    def to_dict(self) -> dict[str, Any]:
        return default_to_dict(self, point=self.point)


def _hold_repetitions(run: RunContext, pending: list[CallRecord]) -> None:
    """A call that is not idempotent and had its effect on a tail left behind runs again only if a person says so."""
    # One whose question is open is held again: it must not run because another call of its step was decided.
    for record in pending:
        if record.status != "planned" or record.attempt:
            continue
        if record.approval is not None:
            if record.approval.decision == "":
                run.ask(record.call_id, record.tool, record.arguments if record.sent is None else record.sent)
            continue
        if run.policy(record.tool).idempotent:
            continue
        arguments = record.arguments if record.sent is None else record.sent
        before = run.journal.repeats(record.tool, arguments)
        if before is not None:
            run.asked = [ask for ask in run.asked if ask.position != record.position]
            run.ask(record.call_id, record.tool, arguments, repeats=before)


def requested_stop(run: RunContext) -> Stop:
    status = "cancelled" if run.signals.stop_request == "cancel" else "paused"
    return Stop(status, status, progress=run.meter.progress())  # type: ignore[arg-type]


def _settled(run: RunContext, state: State) -> list[Settled]:
    """The calls that have an answer in the conversation without having run."""
    waiting = {
        call_id: record for call_id, record in run.calls.items() if record.status not in ENDED_CALL_STATES
    }
    settled = []
    for message in reversed(state.data["messages"]):
        if not waiting:
            break
        for result in message.tool_call_results:
            record = waiting.pop(result.origin.id or "", None)
            if record is not None:
                turned_down = record.approval is not None and record.approval.decision in (
                    "rejected",
                    "expired",
                )
                settled.append(
                    Settled(
                        record.position,
                        "rejected" if turned_down else "failed",
                        clean_text(str(result.result)),
                    )
                )
    return settled


def _answer(messages: list[ChatMessage], reason: str) -> str:
    if not messages:
        return ""
    if messages[-1].is_from("assistant"):
        return messages[-1].text or ""
    for message in reversed(messages):
        for result in message.tool_call_results:
            if result.origin.tool_name == reason:
                return str(result.result)
    return ""


def _find_tools_again(state: State, names: tuple[str, ...]) -> None:
    """A SearchableToolset keeps what it found in the run's copy: repeat its searches, which have no effects."""
    live: dict[str, Tool] = {tool.name: tool for tool in state.data["tools"]}
    if set(names) <= live.keys():
        return
    for message in state.data["messages"]:
        for call in message.tool_calls:
            if call.tool_name in live and call.tool_name == "search_tools":
                live[call.tool_name].invoke(**call.arguments)
