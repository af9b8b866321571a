"""What a person decides in a script about a call: checked, and as the record that a journal writes."""

from typing import Any, Final

from agentstate.durable.records import CallRecord
from agentstate.journals.store import Json, Record, Store
from agentstate.names import CallState, Decision

# No result is given: None is one.
NOT_GIVEN: Final[Any] = object()
_OF_CALL = ("call_id", "tool", "arguments", "idempotency_key")
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
    :raises NotStorable: for a result or arguments that cannot be stored.
    """
    # Imports Haystack, which reading a journal does not need.
    from agentstate.durable.state.encoding import clean_text

    skip, message = clean_text(skip or ""), clean_text(message or "")
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
            changes = {"status": CallState.DONE, "result": _as_of_a_run(result)}
    elif store.may_approve(call) and (
        given <= {"approve", "arguments", "message"} if runs else given in _REFUSALS
    ):
        decision = Decision.APPROVED if runs else Decision.REJECTED
        plain = _plain(arguments) if arguments is not None else None
        if runs and plain is None and call.approval is not None:
            plain = call.approval.edited  # which the request, or the breakpoint, shows
        changes = {"approval": {"decision": decision, "arguments": plain, "message": message}}
    else:
        raise LookupError(_why_undecided(store, call))
    return {"op": "call", "call": call.position, "changes": changes}


def attempt_of(failed: CallRecord, *, position: int) -> Record:
    """What the record of a planned call holds, for a new attempt of a call that failed.

    It runs with the arguments that a person has set for the failed call, if any.
    """
    attempt: Record = {name: getattr(failed, name) for name in _OF_CALL} | {"position": position}
    if failed.approval is not None and failed.approval.edited is not None:
        attempt["approval"] = {
            "decision": Decision.APPROVED,
            "arguments": failed.approval.edited,
            "message": failed.approval.message,
            "carried": True,
        }
    return attempt


def _as_of_a_run(result: Any) -> Json:
    """The result in the form in which a run stores what a tool has returned.

    :raises NotStorable: for what a run would store as its text only. Whoever enters a result can give the text.
    """
    from agentstate.durable.state.encoding import encode, encode_result

    encode(result, "the result")
    return encode_result(result)[0]


def _plain(arguments: Record) -> Record:
    """The arguments as the tool is given them, which is as they are stored: as plain JSON, of which nothing is decoded.

    :raises NotStorable: for a value that JSON does not have.
    """
    from agentstate.durable.state.encoding import NotStorable, clean_text, encode

    def plain(value: Any, path: str) -> Json:
        if isinstance(value, str):
            return clean_text(str.__str__(value))
        if value is None or isinstance(value, int | float):
            return value
        if isinstance(value, list | tuple):
            return [plain(item, f"{path}[{index}]") for index, item in enumerate(value)]
        if isinstance(value, dict) and all(isinstance(name, str) for name in value):
            return {clean_text(name): plain(item, f"{path}[{name!r}]") for name, item in value.items()}
        raise NotStorable(
            path, value, cure="Arguments are plain JSON: text, numbers, booleans, lists and dicts."
        )

    encode(arguments, "arguments")  # refuses what contains itself
    return {name: plain(value, f"arguments[{name!r}]") for name, value in arguments.items()}


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
