"""The log of a session: what happened in its current history, in order, from any place on.

The records are those of `history.export`, so that the desk's JSON, `agent show --json`, `agent tail --json` and the
mirror tell everything in the same form.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from agentstate.names import ENDED_CALL_STATES
from sessions_app.access.masking import Mask
from sessions_app.history.export import call_json, session_json
from sessions_app.models import Session, ToolCall

Json = Any
Entry = tuple[str, dict[str, Json]]
# The kinds of entries, with the keys of the export that hold them.
_OPERATIONS: Final = {
    "message": "messages",
    "reply": "model_calls",
    "call": "tool_calls",
    "checkpoint": "checkpoints",
    "event": "events",
}
# Positions that are read at once.
PAGE = 500


@dataclass(frozen=True, slots=True)
class Place:
    """How far a log was read: up to a position; and the calls that had not ended there, each with its state then."""

    position: int = 0
    open_calls: Mapping[int, str] = field(default_factory=dict)

    def precedes(self, entry: Entry) -> bool:
        """Whether the entry tells anything new."""
        operation, record = entry
        position = record["position"]
        if position > self.position:
            return True
        return operation == "call" and self.open_calls.get(position, _state(record)) != _state(record)

    def after(self, *entries: Entry) -> "Place":
        """The place behind the entries."""
        position, open_calls = self.position, dict(self.open_calls)
        for operation, record in entries:
            position = max(position, record["position"])
            if operation == "call":
                open_calls.pop(record["position"], None)
                if record["status"] not in ENDED_CALL_STATES:
                    open_calls[record["position"]] = _state(record)
        return Place(position, open_calls)


def read_log(session: Session, place: Place, *, mask: Mask) -> tuple[list[Entry], Place]:
    """The next entries behind the place, and the place behind them. At most nine queries.

    The log has been read whole once the place is at ``session.position``. Each call is told when it was planned, and
    again when its state was found to be another one. Nothing is locked: rows up to the position of the session are not
    changed, except for calls that have not ended.
    """
    upto = min(session.position, place.position + PAGE)
    rows = session_json(session, mask=mask, after=place.position, upto=upto, keys=tuple(_OPERATIONS.values()))
    entries: list[Entry] = [
        (operation, record) for operation, key in _OPERATIONS.items() for record in rows[key]
    ]
    if place.open_calls:
        open_calls = ToolCall.objects.visible_on(session.current_branch, upto=place.position).filter(
            position__in=place.open_calls
        )
        again: list[Entry] = [("call", call_json(call, mask=mask)) for call in open_calls]
        entries += [entry for entry in again if place.precedes(entry)]
    entries.sort(key=lambda entry: int(entry[1]["position"]))
    behind = place.after(*entries)
    return entries, Place(upto, behind.open_calls)


def _state(call: Mapping[str, Json]) -> str:
    return f"{call['status']} {call['attempts']}"
