"""What a person decides in a script about a call that waits: checked, and as the record that a journal writes."""

from typing import Any, Final

from agentstate.durable.records import CallRecord
from agentstate.journals.store import Record, Store
from agentstate.names import CallState, Decision

# No result is given: None is one.
NOT_GIVEN: Final[Any] = object()
_OF_DOUBTS = ({"result"}, {"again"}, {"skip"})
_REFUSALS = ({"approve"}, {"approve", "message"})


def decision_record(
    store: Store,
    call_id: str,
    *,
    approve: bool | None,
    arguments: Record | None,
    result: Any,
    again: bool,
    skip: str,
    message: str,
) -> Record:
    """The record of the decision, for a journal that holds the store's lock.

    :raises LookupError: if no call of that id waits for such a decision, with what it waits for.
    """
    options = {
        "approve": approve is not None,
        "arguments": arguments is not None,
        "result": result is not NOT_GIVEN,
        "again": again,
        "skip": bool(skip),
        "message": bool(message),
    }
    given = {name for name, is_given in options.items() if is_given}
    call = store.step_calls_by_id().get(call_id)
    if call is None:
        raise LookupError(f"No call {call_id!r} waits for a decision.")
    changes: Record
    # At a breakpoint nothing else is asked: whoever changes the arguments lets the call run with them.
    runs = approve is True or (approve is None and arguments is not None and store.is_held(call))
    if call.status == CallState.DOUBT and given in _OF_DOUBTS:
        if again:
            changes = {"status": CallState.PLANNED}
        elif skip:
            changes = {"status": CallState.SKIPPED, "error": skip}
        else:
            changes = {"status": CallState.DONE, "result": result}
    elif store.may_approve(call) and (
        given <= {"approve", "arguments", "message"} if runs else given in _REFUSALS
    ):
        decision = Decision.APPROVED if runs else Decision.REJECTED
        changes = {"approval": {"decision": decision, "arguments": arguments, "message": message}}
    else:
        raise LookupError(_why_undecided(store, call))
    return {"op": "call", "call": call.position, "changes": changes}


def _why_undecided(store: Store, call: CallRecord) -> str:
    name = f"The call {call.call_id!r}"
    if call.status == CallState.DOUBT:
        return f"{name} is in doubt: give its result, again=True, or skip with a message for the model."
    if store.is_held(call):
        return (
            f"{name} waits at a breakpoint: give other arguments, or approve=False with a message for the model. "
            "resume() runs it as it is."
        )
    if store.may_approve(call):
        return f"{name} waits for approval: give approve=True, also with other arguments, or approve=False."
    return f"No call {call.call_id!r} waits for a decision."
