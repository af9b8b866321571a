"""One value of a session as it is stored, for a person who may see what is hidden. At most four queries.

Each value has a name for the audit trail: ``the arguments of call 17 of issue_refund``. Whoever shows a value has to
record the look first, with `actions.reveal`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from agentstate.durable.state.tags import as_plain_data
from sessions_app.access.availability import shows
from sessions_app.access.shown import in_one_line
from sessions_app.access.typed import whole_number
from sessions_app.desk.pages.session import checkpoints
from sessions_app.desk.pages.session.context import SessionContext
from sessions_app.desk.pages.session.places import page_of
from sessions_app.desk.pages.values import ReadableValue, readable
from sessions_app.history import from_state, restore
from sessions_app.history.memory_entries import entries_about
from sessions_app.history.message_rows import fill_texts
from sessions_app.models import Approval, Event, Message, ModelCall, ToolCall
from sessions_app.models.rows import BranchRow

# Characters of a name in the audit trail.
_NAME = 60
Row = TypeVar("Row", ToolCall, Message, ModelCall, Event)


@dataclass(frozen=True, slots=True)
class RevealedValue:
    """``what`` it is, for the audit trail; and the address of the page that shows the history around it, if any."""

    what: str
    value: ReadableValue
    place: str = ""


def find(context: SessionContext, kind: str, key: str) -> RevealedValue | None:
    """The value of this kind; None if the session does not have it, or it is empty.

    :param key: A position for what the timeline shows; the primary key of an unread message; the name of a field of
        the session; for a state value the primary key of a checkpoint and its place among that one's keys, ``12-0``.
    """
    stored = _KINDS[kind](context, key) if kind in _KINDS else None
    if stored is None or stored[1] in (None, ""):
        return None
    what, value, row = stored
    place = page_of(context, row.branch, row.position) if row is not None and row.branch is not None else ""
    return RevealedValue(what, readable(value, as_stored=True), place)


# What it is, the value, and the row of the history that it belongs to.
_StoredValue = tuple[str, Any, BranchRow | Event | None]
_Finder = Callable[[SessionContext, str], _StoredValue | None]


def _at(model: type[Row], context: SessionContext, key: str) -> Row | None:
    """The row at a position, on any branch of the session or in the history with which it was forked."""
    position = whole_number(key)
    if position is None:
        return None
    rows = model.objects.select_related("branch").filter(position=position)
    own_row = rows.filter(branch__session=context.session_row).first()
    return (
        own_row
        or model.objects.select_related("branch").visible_on(context.branch).filter(position=position).first()
    )


def _call(name: str, read: Callable[[ToolCall], Any]) -> _Finder:
    def find_call(context: SessionContext, key: str) -> _StoredValue | None:
        call = _at(ToolCall, context, key)
        what = (
            f"of call {call.position} of {in_one_line(context.mask.tool(call.tool), _NAME)}" if call else ""
        )
        return (f"{name} {what}", read(call), call) if call else None

    return find_call


def _message(context: SessionContext, key: str) -> _StoredValue | None:
    message = _at(Message, context, key)
    if message is None:
        return None
    [message] = fill_texts(message.branch, [message])
    return f"message {message.position}", message.text, message


def _failure(context: SessionContext, key: str) -> _StoredValue | None:
    call = _at(ModelCall, context, key)
    return (f"the error of model call {call.position}", call.error, call) if call else None


def _reason(context: SessionContext, key: str) -> _StoredValue | None:
    event = _at(Event, context, key)
    return (f"the reason at {event.position}", event.reason, event) if event else None


def _unread(context: SessionContext, key: str) -> _StoredValue | None:
    pk = whole_number(key)
    message = context.session_row.inbox.filter(pk=pk).first() if pk is not None else None
    return (f"unread message {message.pk}", message.text, None) if message else None


def _session(context: SessionContext, key: str) -> _StoredValue | None:
    return (f"the {key} of the session", getattr(context.session_row, key), None) if key in _FIELDS else None


def _state(context: SessionContext, key: str) -> _StoredValue | None:
    first, _, second = key.partition("-")
    pk, place = whole_number(first), whole_number(second)
    checkpoint = checkpoints.find(context, pk) if pk is not None and place is not None else None
    if checkpoint is None:
        return None
    branch = context.branch if shows(context.branch, checkpoint) else checkpoint.branch
    values = sorted(restore.state_of(branch, checkpoint).items())
    if place is None or place >= len(values):
        return None
    name, value = values[place]
    return f"the state value {in_one_line(name, _NAME)} at {checkpoint.position}", value, checkpoint


def _entry(context: SessionContext, key: str) -> _StoredValue | None:
    pk = whole_number(key)
    entry = entries_about(context.session_row).filter(pk=pk).first() if pk is not None else None
    return (f"entry {entry.pk} of the long-term memory", entry.text, None) if entry else None


def _from_state(call: ToolCall) -> Any:
    approval = Approval.objects.filter(call=call).first()
    return from_state.of_request(approval) or None if approval is not None else None


_FIELDS = ("title", "customer")
_KINDS: dict[str, _Finder] = {
    "arguments": _call("the arguments", lambda call: as_plain_data(call.ran_with)),
    "asked": _call("the arguments that the agent asked for", lambda call: as_plain_data(call.arguments)),
    "from_state": _call("what was shown of the State", _from_state),
    "result": _call("the result", lambda call: call.result),
    "error": _call("the error", lambda call: call.error),
    "message": _message,
    "failure": _failure,
    "reason": _reason,
    "unread": _unread,
    "state": _state,
    "session": _session,
    "entry": _entry,
}
