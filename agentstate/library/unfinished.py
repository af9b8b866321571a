"""The outcome of a turn that has no answer yet, from the record of the end of its run. Needs no Haystack."""

from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from agentstate.durable.breakpoints import stored_breakpoints
from agentstate.durable.policy import DEFAULT, Policies
from agentstate.durable.state_excerpts import values_of
from agentstate.journals.store import Store
from agentstate.library.outcomes import AtBreakpoint, Failed, Outcome, PendingCall, RetryAt, Waiting
from agentstate.names import CallState, Need, RunEvent


def pending_calls(store: Store, policies: Policies) -> list[PendingCall]:
    """The calls of the unfinished step that a person has to decide about, or may decide about at a breakpoint."""
    pending = []
    for call in store.step_calls():
        waits_for: Literal["approval", "doubt", "breakpoint"]
        if call.status == CallState.DOUBT:
            waits_for = "doubt"
        elif call.approval is not None and call.approval.decision == "":
            waits_for = "approval"
        elif store.is_held(call):
            waits_for = "breakpoint"
        else:
            continue
        effect = policies.get(call.tool, DEFAULT).effect
        from_state = values_of(call.approval.from_state) if call.approval is not None else {}
        pending.append(
            PendingCall(call.call_id, call.tool, call.shown_arguments, waits_for, effect, from_state)
        )
    return pending


def unfinished_outcome(store: Store, end: dict[str, Any], accepted: bool, policies: Policies) -> Outcome:
    """
    :param end: The record of the end of the run.
    :param accepted: As for the outcomes.
    """
    why = end["why"] or end["error"]
    if end["event"] == RunEvent.RETRY:
        return RetryAt(why=why, accepted=accepted, at=datetime.now(UTC) + timedelta(seconds=end["delay"]))
    pending = tuple(pending_calls(store, policies))
    if end["waiting_for"]:
        return Waiting(why=why, accepted=accepted, waiting_for=Need(end["waiting_for"]), pending=pending)
    if place := end.get("breakpoint"):
        return AtBreakpoint(
            why=why,
            accepted=accepted,
            before=place["before"],
            breakpoints=stored_breakpoints(place["breakpoints"]),
            pending=pending,
        )
    return Failed(why=why or "The run ended without an answer.", accepted=accepted)
