"""What waits for a person, in one list by its age: approvals, calls in doubt, failures by cause, changed agents, stuck
sessions.

Each kind is read by an index of its own, at most one page of it, and the pages are merged: a list costs the same
however many rows there are.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from uuid import UUID

from django.db.models import Q, QuerySet

from sessions_app.finding import causes as failures
from sessions_app.finding.causes import Cause
from sessions_app.finding.counting import MOST, Count
from sessions_app.finding.inbox_cursor import COLUMNS, Cursor, Key, place, read_cursor
from sessions_app.finding.inbox_first import columns, first_lines
from sessions_app.finding.inbox_rows import (
    BY_CAUSE,
    FAILED,
    KINDS,
    OF_TOOLS,
    calls_of_any_session,
    of_kind,
    rows_of,
)
from sessions_app.finding.inbox_states import Condition, Matches
from sessions_app.finding.keys import in_list, listed
from sessions_app.models import Session
from sessions_app.models.compiled import compiled

PAGE = 25
# A page has no more calls to decide: each is a card with what is known of the call, which costs more than another line.
PAGE_OF_CALLS = 10
# So many calls in their order are asked for their sessions faster than all sessions that match are found.
LOOKED_AT = 1_000


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
    """One page of the kinds. One query for each, two more for each of `OF_TOOLS` with a filter of several fields, one
    more for each of `BY_CAUSE` that has lines, and that of `Condition.found_calls`.

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
    if condition is not None and kind in OF_TOOLS and condition.stopped.may_be_first:
        near = _near(kind, now, condition, tool, order, most)
        if near is not None:
            return near
    if order.after is None:
        first = first_lines(kind, now, condition, tool, oldest_first=order.oldest_first, most=most)
        return [Entry(kind, *values) for values in first]
    rows = rows_of(kind, now, condition, tool)
    behind = columns(kind, rows, order.after, condition=condition, oldest_first=order.oldest_first, most=most)
    return [Entry(kind, *values) for values in behind]


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
    in_order = replace(condition, stopped=replace(condition.stopped, matches=Matches.MANY), calls=None)
    parts = [part.filter(is_near) for part in rows_of(kind, now, in_order, tool)]
    found = columns(kind, parts, order.after, oldest_first=order.oldest_first, most=most)
    lines = [Entry(kind, *values) for values in found]
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
    if condition is None:
        return MOST
    of_state = of_kind(kind, condition)
    # Hardly any call is of the sessions that have something asked of them last.
    return MOST if of_state.matches is Matches.FEW or of_state.last else PAGE


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
