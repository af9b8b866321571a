"""The log of a session: what happened in its current history, in order, from any place on.

The records are those of `history.export`, so that the desk's JSON, `agent show --json`, `agent tail --json` and the
mirror tell everything in the same form.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from django.db.models import QuerySet

from agentstate.names import ENDED_CALL_STATES
from sessions_app.access.masking import Mask
from sessions_app.history import export
from sessions_app.history.message_rows import RESULT_OF
from sessions_app.models import Checkpoint, Event, Message, ModelCall, Session, ToolCall
from sessions_app.models.compiled import compiled
from sessions_app.models.rows import Ranges, visible

Json = Any
Entry = tuple[str, dict[str, Json]]
Row = TypeVar("Row", Message, ModelCall, ToolCall, Checkpoint, Event)
# Columns that no entry tells.
_UNTOLD: Mapping[type, tuple[str, ...]] = {
    ModelCall: ("side_replies",),
    ToolCall: ("state",),
    Checkpoint: ("context", "keys", "counters", "tools", "totals"),
}
# Positions that are read at once, of all sessions together.
PAGE = 500
# Ranges of positions that one query reads.
MOST_RANGES = 32


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


@dataclass(frozen=True, slots=True)
class PageRequest:
    """What is to be read of one session: the log behind a place, and its messages perhaps from further back.

    :param messages_after: No further than the place.
    """

    session: Session
    place: Place
    messages_after: int

    def upto(self, positions: int) -> int:
        return min(self.session.position, self.place.position + positions)

    def ranges(self, upto: int, *, after: int | None = None) -> Ranges:
        after = self.place.position if after is None else after
        return visible(self.session.current_branch, after=after, upto=upto)


@dataclass(frozen=True, slots=True)
class Page:
    """The rows of the next entries of a session's log.

    :param upto: The position of the last.
    :param messages: From `PageRequest.messages_after` on.
    :param earlier_calls: Calls at or before the place: those that had not ended, and those that the messages answer.
    """

    place: Place
    upto: int
    messages: Sequence[Message]
    model_calls: Sequence[ModelCall]
    calls: Sequence[ToolCall]
    earlier_calls: Sequence[ToolCall]
    checkpoints: Sequence[Checkpoint]
    events: Sequence[Event]

    def entries(self, mask: Mask) -> list[Entry]:
        """Oldest first. Each call is told when it was planned, and again when its state was found to be another one."""
        all_calls = [*self.earlier_calls, *self.calls]
        messages = [row for row in self.messages if row.position > self.place.position]
        records = {
            "message": export.messages_json(messages, all_calls, mask=mask),
            "reply": export.model_calls_json(self.model_calls, mask=mask),
            "call": [export.call_json(row, mask=mask) for row in all_calls],
            "checkpoint": export.checkpoints_json(self.checkpoints, mask=mask),
            "event": export.events_json(self.events, mask=mask),
        }
        entries = [(operation, record) for operation, those in records.items() for record in those]
        return sorted(filter(self.place.precedes, entries), key=lambda entry: int(entry[1]["position"]))

    def behind(self, entries: Sequence[Entry]) -> Place:
        """The place behind these entries, which are those of the page."""
        return Place(self.upto, self.place.after(*entries).open_calls)


def read_log(session: Session, place: Place, *, mask: Mask) -> tuple[list[Entry], Place]:
    """The next entries behind the place, and the place behind them. At most eight queries; see `read_pages`."""
    [page] = read_pages([PageRequest(session, place, place.position)])
    entries = page.entries(mask)
    return entries, page.behind(entries)


def read_pages(wanted: Sequence[PageRequest]) -> list[Page]:
    """The next page of each session's log: one query for each kind of rows, and one for calls that are told again.

    A log has been read whole once its place is at ``session.position``. Nothing is locked: rows up to the position of
    the session are not changed, except for calls that have not ended.
    """
    uptos = [each.upto(max(1, PAGE // len(wanted))) for each in wanted]
    stretches = [each.ranges(upto) for each, upto in zip(wanted, uptos, strict=True)]
    messages = _read(
        Message,
        [each.ranges(upto, after=each.messages_after) for each, upto in zip(wanted, uptos, strict=True)],
    )
    calls = _read(ToolCall, stretches)
    earlier = [
        tuple(
            range_ for position in sorted(positions) for range_ in each.ranges(position, after=position - 1)
        )
        for each, positions in zip(wanted, map(_earlier, wanted, messages, calls), strict=True)
    ]
    rows = zip(
        wanted,
        uptos,
        messages,
        _read(ModelCall, stretches),
        calls,
        _read(ToolCall, earlier),
        _read(Checkpoint, stretches),
        _read(Event, stretches),
        strict=True,
    )
    return [Page(each.place, upto, *of_session) for each, upto, *of_session in rows]


def _earlier(wanted: PageRequest, messages: Sequence[Message], calls: Sequence[ToolCall]) -> set[int]:
    """The positions of the calls that are told again, or answered by the messages, and not among the calls."""
    answered = {row.body[RESULT_OF] for row in messages if RESULT_OF in row.body}
    return (answered | set(wanted.place.open_calls)) - {call.position for call in calls}


def _read(model: type[Row], stretches: Sequence[Ranges]) -> list[list[Row]]:
    """The rows of each stretch, oldest first. One query for every `MOST_RANGES` ranges, none without any."""
    ranges = sorted({each for stretch in stretches for each in stretch})
    rows: dict[int, list[Row]] = {}
    for first in range(0, len(ranges), MOST_RANGES):
        for row in _rows(_filled_up(ranges[first : first + MOST_RANGES]), model=model):
            rows.setdefault(row.branch_id, []).append(row)
    return [
        sorted(
            (
                row
                for branch, after, upto in stretch
                for row in rows.get(branch, ())
                if after < row.position <= (upto or 0)
            ),
            key=lambda row: row.position,
        )
        for stretch in stretches
    ]


def _filled_up(ranges: list[tuple[int, int, int | None]]) -> Ranges:
    """As many as the next power of two, so that few numbers of them are compiled; those added hold nothing."""
    number = 1 << (len(ranges) - 1).bit_length()
    return (*ranges, *[(0, 0, 0)] * (number - len(ranges)))


@compiled
def _rows(where: Ranges, *, model: type[Row]) -> QuerySet[Any]:
    rows: QuerySet[Any] = model.objects.within(where)
    return rows.defer(*_UNTOLD.get(model, ())).order_by()


def _state(call: Mapping[str, Json]) -> str:
    return f"{call['status']} {call['attempts']}"
