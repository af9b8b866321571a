"""What waits for a person, in one list by its age: approvals, calls in doubt, failures by cause, changed agents, stuck
sessions.

Each kind is read by an index of its own, at most one page of it, and the pages are merged: a list costs the same
however many rows there are.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import Q, QuerySet

from sessions_app.finding import causes as failures
from sessions_app.finding.causes import Cause
from sessions_app.finding.counting import MOST, Count
from sessions_app.finding.inbox_cursor import COLUMNS, Cursor, Key, place, read_cursor
from sessions_app.finding.inbox_rows import (
    APPROVAL,
    BY_CAUSE,
    DOUBT,
    FAILED,
    KINDS,
    OF_TOOLS,
    STUCK,
    approvals,
    calls_of_any_session,
    doubts,
    of_kind,
    rows_of,
    stuck_sessions,
)
from sessions_app.finding.inbox_states import Condition, Matches, Named, OfState
from sessions_app.finding.keys import in_list, listed
from sessions_app.finding.parts import Part, first_of_all
from sessions_app.models import Session
from sessions_app.models.compiled import compiled, planned_anew

PAGE = 25
# A page has no more calls to decide: each is a card with what is known of the call, which costs more than another line.
PAGE_OF_CALLS = 10
# So many calls in their order are asked for their sessions faster than all sessions that match are found.
LOOKED_AT = 1_000
Columns = QuerySet[Any, tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the inbox. ``key`` is that of an approval, a call, or a session; of a cause, its oldest session's.

    version: changes whenever the line has to be drawn again. ``expires_at``: until when it can be decided, if it ends.
    """

    kind: str
    since: datetime
    key: Key
    version: object = ""
    expires_at: datetime | None = None

    @property
    def order(self) -> tuple[datetime, int, Key]:
        return self.since, KINDS.index(self.kind), self.key

    @property
    def cursor(self) -> str:
        return f"{self.since.isoformat()}_{self.kind}_{self.key}"


@dataclass(frozen=True, slots=True)
class Entries:
    """One page. ``next`` is the cursor of the next one, "" on the last; ``causes`` are by their oldest sessions.

    numbers: of the lines on all pages, by kind, as far as reading this one has shown them.
    more_causes: whether there are causes that are on no page, since a kind has more than `causes.MOST_CAUSES`.
    """

    entries: list[Entry]
    causes: dict[UUID, Cause]
    next: str
    numbers: dict[str, Count]
    more_causes: bool = False


def read_page(
    now: datetime,
    *,
    kinds: Sequence[str] = KINDS,
    condition: Condition | None = None,
    tool: str = "",
    after: str = "",
    oldest_first: bool = True,
    limit: int | None = None,
) -> Entries:
    """One page of the kinds. One query for each, two more for each of `OF_TOOLS` with a filter of several fields, and
    one more for each of `BY_CAUSE` that has lines.

    :param tool: Only calls of this tool, and so only the kinds `OF_TOOLS`.
    :param after: The cursor that the page before gave, in the same order; an invalid one gives the first page.
    """
    order = _Order(read_cursor(after), oldest_first)
    limit = limit or PAGE
    kinds = [kind for kind in kinds if not tool or kind in OF_TOOLS]
    entries: list[Entry] = []
    numbers: dict[str, Count] = {}
    for kind in COLUMNS:
        if kind in kinds:
            counted = counted_up_to(kind, condition)
            # To read as many lines as are counted costs little more than a page of them; to count them costs as much
            # again.
            most = max(limit, counted) + 1 if order.after is None else limit + 1
            lines = _lines_of(kind, now, condition, tool, order, most)
            entries += lines[: limit + 1]
            if order.after is None:
                numbers[kind] = Count.of(len(lines), counted)
    most_causes = failures.MOST_CAUSES
    found = failures.read_causes(
        condition,
        kinds=[kind for kind in BY_CAUSE if kind in kinds],
        limit=most_causes + 1,
        members=counted_up_to(FAILED, condition),
    )
    causes: dict[UUID, Cause] = {}
    for kind, causes_of_kind in found.items():
        numbers[kind] = Count.of(len(causes_of_kind))
        by_oldest = {cause.oldest: cause for cause in causes_of_kind[:most_causes]}
        entries += filter(order.has_behind, _entries_of(kind, by_oldest))
        causes |= by_oldest
    entries.sort(key=lambda entry: entry.order, reverse=not oldest_first)
    shown = _shown_lines(entries, limit)
    following = shown[-1].cursor if len(shown) < len(entries) else ""
    more_causes = any(len(causes_of_kind) > most_causes for causes_of_kind in found.values())
    return Entries(shown, causes, following, numbers, more_causes)


@dataclass(frozen=True, slots=True)
class _Order:
    """``after`` is the cursor of the page before; None on the first page."""

    after: Cursor | None
    oldest_first: bool

    def has_behind(self, entry: Entry) -> bool:
        """Whether the entry stands on this page or a later one."""
        if self.after is None:
            return True
        return entry.order > self.after if self.oldest_first else entry.order < self.after


def _lines_of(
    kind: str, now: datetime, condition: Condition | None, tool: str, order: _Order, most: int
) -> list[Entry]:
    """The first lines of a kind that is not listed by cause. At most three queries."""
    if condition is None and not tool and order.after is None:
        return [Entry(kind, *values) for values in _first_of_kind(kind, now, order.oldest_first, most)]
    if condition is not None and order.after is None:
        first = _first_named(kind, now, condition, tool, order.oldest_first, most)
        if first is not None:
            return [Entry(kind, *values) for values in first]
    if condition is not None and kind in OF_TOOLS and condition.stopped.may_be_first:
        near = _near(kind, now, condition, tool, order, most)
        if near is not None:
            return near
    rows = rows_of(kind, now, condition, tool)
    keys_first = condition is not None and of_kind(kind, condition).matches is not Matches.MANY
    columns = _columns(
        rows, kind, order.after, oldest_first=order.oldest_first, most=most, keys_first=keys_first
    )
    return [Entry(kind, *values) for values in columns]


def _near(
    kind: str, now: datetime, condition: Condition, tool: str, order: _Order, most: int
) -> list[Entry] | None:
    """The first lines of a kind of `OF_TOOLS`, for which each call is asked for its session in the order of the lines;
    None if there may be others behind the first `LOOKED_AT` calls. Two queries.
    """
    behind, by = place(order.after, kind, oldest_first=order.oldest_first)
    since = COLUMNS[kind][0]
    calls = calls_of_any_session(kind, now, tool).filter(behind).order_by(*by)
    last = [*calls.values_list(since, flat=True)[LOOKED_AT : LOOKED_AT + 1]]
    is_near = Q(*((f"{since}__{'lte' if order.oldest_first else 'gte'}", each) for each in last))
    in_order = replace(condition, stopped=replace(condition.stopped, matches=Matches.MANY))
    parts = [part.filter(is_near) for part in rows_of(kind, now, in_order, tool)]
    columns = _columns(parts, kind, order.after, oldest_first=order.oldest_first, most=most)
    lines = [Entry(kind, *values) for values in columns]
    return lines if len(lines) == most or not last else None


def _shown_lines(entries: Sequence[Entry], limit: int) -> list[Entry]:
    """The first lines, up to the last call of a page."""
    shown: list[Entry] = []
    calls = 0
    for entry in entries[:limit]:
        calls += entry.kind in OF_TOOLS
        if calls > PAGE_OF_CALLS:
            break
        shown.append(entry)
    return shown


def counted_up_to(kind: str, condition: Condition | None) -> int:
    """Up to which number the lines of a kind, or the members of causes, are counted."""
    return MOST if condition is None or of_kind(kind, condition).matches is Matches.FEW else PAGE


def _first_of_kind(kind: str, now: datetime, oldest_first: bool, most: int) -> Sequence[tuple[Any, ...]]:
    """The columns of the first lines of all, by a compiled query."""
    if kind == DOUBT:
        return _first_doubts(oldest_first=oldest_first, most=most)
    first = _first_approvals if kind == APPROVAL else _first_stuck
    return first(now, oldest_first=oldest_first, most=most)


@compiled
def _first_approvals(now: datetime, *, oldest_first: bool, most: int) -> Columns:
    return _columns(approvals(now, None), APPROVAL, None, oldest_first=oldest_first, most=most)


@compiled
def _first_doubts(*, oldest_first: bool, most: int) -> Columns:
    return _columns(doubts(None), DOUBT, None, oldest_first=oldest_first, most=most)


@compiled
def _first_stuck(now: datetime, *, oldest_first: bool, most: int) -> Columns:
    return _columns(stuck_sessions(now, None), STUCK, None, oldest_first=oldest_first, most=most)


def _first_named(
    kind: str, now: datetime, condition: Condition, tool: str, oldest_first: bool, most: int
) -> Sequence[tuple[Any, ...]] | None:
    """The columns of the first lines of sessions that are named, by a compiled query; None where they are not."""
    stopped, moving = condition.stopped.named, condition.moving.named
    if stopped is None:
        return None
    # Both are the same for all states.
    again = stopped.status or None, stopped.phase or None
    how: dict[str, Any] = {"oldest_first": oldest_first, "most": most}
    if kind == STUCK:
        if moving is None:
            return None
        if stopped.keys is None and moving.keys is None:
            return []
        return _named_stuck(now, stopped.keys, moving.keys, *again, **how)
    if stopped.keys is None:
        return []
    if kind == DOUBT:
        return _named_doubts(stopped.keys, tool or None, *again, **how)
    return _named_approvals(now, stopped.keys, tool or None, *again, **how)


@planned_anew
def _named_approvals(
    now: datetime,
    keys: str,
    tool: str | None,
    status: str | None,
    phase: str | None,
    *,
    oldest_first: bool,
    most: int,
) -> Columns:
    rows = approvals(now, _named(keys, keys, status, phase), tool or "")
    return _columns(rows, APPROVAL, None, oldest_first=oldest_first, most=most, keys_first=True)


@planned_anew
def _named_doubts(
    keys: str, tool: str | None, status: str | None, phase: str | None, *, oldest_first: bool, most: int
) -> Columns:
    rows = doubts(_named(keys, keys, status, phase), tool or "")
    return _columns(rows, DOUBT, None, oldest_first=oldest_first, most=most, keys_first=True)


@planned_anew
def _named_stuck(
    now: datetime,
    stopped: str | None,
    moving: str | None,
    status: str | None,
    phase: str | None,
    *,
    oldest_first: bool,
    most: int,
) -> Columns:
    rows = stuck_sessions(now, _named(stopped, moving, status, phase))
    return _columns(rows, STUCK, None, oldest_first=oldest_first, most=most, keys_first=True)


def _named(stopped: str | None, moving: str | None, status: str | None, phase: str | None) -> Condition:
    of_stopped, of_moving = (
        OfState.of_named(Named(keys, status or "", phase or "")) for keys in (stopped, moving)
    )
    return Condition(of_stopped, of_moving, of_stopped)


def _columns(
    parts: Sequence[Part],
    kind: str,
    cursor: Cursor | None,
    *,
    oldest_first: bool,
    most: int,
    keys_first: bool = False,
) -> Columns:
    """The columns of the first lines behind the cursor."""
    since, *others = COLUMNS[kind]
    beyond, order = place(cursor, kind, oldest_first=oldest_first)
    found = first_of_all([part.filter(beyond) for part in parts], order, most, keys_first=keys_first)
    return found.values_list(since, "pk", *others, named=False)


def _entries_of(kind: str, causes: dict[UUID, Cause]) -> list[Entry]:
    """The lines of the causes, which are of this kind. One query, if there are any."""
    keys = {key for cause in causes.values() for key in (cause.oldest, cause.newest)}
    times = {pk: (at, version) for pk, at, version in _versions(listed(keys))} if keys else {}
    return [
        Entry(kind, times[oldest][0], oldest, (*times[oldest], times[cause.newest], cause.number))
        for oldest, cause in causes.items()
        if oldest in times and cause.newest in times
    ]


@compiled
def _versions(keys: str) -> QuerySet[Session, tuple[UUID, datetime, int]]:
    return (
        Session.objects.filter(in_list(keys, kind="uuid"))
        .order_by()
        .values_list("pk", "updated_at", "version")
    )
