"""The log of a session: what happened in its current history, in order, from any place on.

The records are those of `history.export`, so that the desk's JSON, `agent show --json`, `agent tail --json` and the
mirror tell everything in the same form.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from django.db.models import QuerySet

from agentstate.names import ENDED_CALL_STATES, STEP_END_KINDS
from sessions_app.access.masking import Mask
from sessions_app.history import export
from sessions_app.history.message_rows import RESULT_OF
from sessions_app.models import Checkpoint, Event, Message, ModelCall, Session, ToolCall
from sessions_app.models.compiled import compiled
from sessions_app.models.rows import Ranges, visible

Json = Any
Entry = tuple[str, dict[str, Json]]
Row = TypeVar("Row", Message, ModelCall, ToolCall, Checkpoint, Event)
# Columns that are in no entry.
_LEFT_OUT: Mapping[type, tuple[str, ...]] = {
    ModelCall: ("side_replies",),
    ToolCall: ("state",),
    Checkpoint: ("context", "keys", "counters", "tools", "totals"),
}
# Positions of a page.
PAGE = 500
# Ranges of positions that one query reads: a compiled query takes a hundred values.
MOST_RANGES = 32
# Calls so few positions apart are read with what lies between them.
NEAR = 8


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
    """The next page of a session's log, behind a place.

    :param step_began_at: The position behind which the messages of the step at the place lie. They are read, too, where
        a step ends on the page.
    """

    session: Session
    place: Place
    step_began_at: int

    @property
    def upto(self) -> int:
        return min(self.session.position, self.place.position + PAGE)

    @property
    def positions(self) -> int:
        return self.upto - self.place.position

    def ranges(self, *, after: int | None = None) -> Ranges:
        after = self.place.position if after is None else min(after, self.place.position)
        return visible(self.session.current_branch, after=after, upto=self.upto)

    def ranges_around(self, positions: Iterable[int]) -> Ranges:
        """Where the rows of these positions lie, and perhaps some between them."""
        found: list[list[int]] = []
        for position in sorted(positions):
            if found and position - found[-1][1] <= NEAR:
                found[-1][1] = position
            else:
                found.append([position, position])
        branch = self.session.current_branch
        return tuple(part for first, last in found for part in visible(branch, after=first - 1, upto=last))


@dataclass(frozen=True, slots=True)
class Page:
    """The rows of the next entries of a session's log.

    :param upto: The position of the last.
    :param messages: Where a step ends on the page, with those of the step at the place, from its beginning on.
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
    """The next entries behind the place, and the place behind them. See `read_pages` for its queries."""
    [page] = read_pages([PageRequest(session, place, place.position)])
    entries = page.entries(mask)
    return entries, page.behind(entries)


def read_pages(requests: Sequence[PageRequest]) -> list[Page]:
    """The pages: one query for each kind of rows, and one for calls before them, for every `MOST_RANGES` ranges.

    The entries of a page with notes of staff make two more. A log has been read whole once its place is at
    ``session.position``. Nothing is locked: rows up to the position of the session are not changed, except for calls
    that have not ended.
    """
    ranges = [request.ranges() for request in requests]
    checkpoints = _read(Checkpoint, ranges)
    messages = _read(
        Message,
        [
            request.ranges(after=request.step_began_at if _ends_a_step(rows) else None)
            for request, rows in zip(requests, checkpoints, strict=True)
        ],
    )
    calls = _read(ToolCall, ranges)
    rows = zip(
        requests,
        messages,
        _read(ModelCall, ranges),
        calls,
        _read_earlier_calls(requests, messages, calls),
        checkpoints,
        _read(Event, ranges),
        strict=True,
    )
    return [Page(request.place, request.upto, *of_session) for request, *of_session in rows]


def _ends_a_step(checkpoints: Sequence[Checkpoint]) -> bool:
    return any(checkpoint.kind in STEP_END_KINDS for checkpoint in checkpoints)


def _read_earlier_calls(
    requests: Sequence[PageRequest],
    messages: Sequence[Sequence[Message]],
    calls: Sequence[Sequence[ToolCall]],
) -> list[list[ToolCall]]:
    """Of each session the calls that had not ended at the place, and those that its messages answer.

    :param calls: Those that have been read; none of them is read again.
    """
    positions = []
    for request, of_session, already in zip(requests, messages, calls, strict=True):
        answered = {row.body[RESULT_OF] for row in of_session if RESULT_OF in row.body}
        positions.append((answered | set(request.place.open_calls)) - {call.position for call in already})
    ranges = [request.ranges_around(wanted) for request, wanted in zip(requests, positions, strict=True)]
    return [
        [call for call in found if call.position in wanted]
        for found, wanted in zip(_read(ToolCall, ranges), positions, strict=True)
    ]


def _read(model: type[Row], ranges: Sequence[Ranges]) -> list[list[Row]]:
    """Of each session the rows in its ranges, oldest first."""
    different = sorted({each for of_session in ranges for each in of_session})
    # Ranges of sessions that share a history overlap, so that two queries may find the same row.
    rows: dict[int, dict[int, Row]] = {}
    for first in range(0, len(different), MOST_RANGES):
        for row in _rows(_filled_up(different[first : first + MOST_RANGES]), model=model):
            rows.setdefault(row.branch_id, {})[row.position] = row
    return [
        sorted(
            (
                row
                for branch, after, upto in of_session
                for row in rows.get(branch, {}).values()
                if after < row.position <= (upto or 0)
            ),
            key=lambda row: row.position,
        )
        for of_session in ranges
    ]


def _filled_up(ranges: list[tuple[int, int, int | None]]) -> Ranges:
    """As many as the next power of two, so that few numbers of them are compiled; those added hold nothing."""
    number = 1 << (len(ranges) - 1).bit_length()
    return (*ranges, *[(0, 0, 0)] * (number - len(ranges)))


@compiled
def _rows(where: Ranges, *, model: type[Row]) -> QuerySet[Any]:
    rows: QuerySet[Any] = model.objects.within(where)
    return rows.defer(*_LEFT_OUT.get(model, ())).order_by()


def _state(call: Mapping[str, Json]) -> str:
    return f"{call['status']} {call['attempts']}"
