"""What waits for a person, in one list by its age: approvals, calls in doubt, failures by cause, changed agents, stuck
sessions.

Each kind is read by an index of its own, at most one page of it, and the pages are merged: a list costs the same
however many rows there are.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum, auto
from typing import Any
from uuid import UUID

from django.db.models import BooleanField, ExpressionWrapper, OuterRef, Q, QuerySet, Subquery, Value

from sessions_app.access.typed import read_time
from sessions_app.finding import causes as failures
from sessions_app.finding import stuck
from sessions_app.finding.causes import Cause
from sessions_app.finding.counting import MOST, Count
from sessions_app.finding.parts import NotEstimated, first_of_all
from sessions_app.models import Approval, CallStatus, Session, Status, ToolCall
from sessions_app.models.compiled import compiled

APPROVAL, DOUBT, FAILED, CHANGED, STUCK = KINDS = ("approval", "doubt", "failed", "changed", "stuck")
BY_CAUSE = (FAILED, CHANGED)
# The kinds whose lines are calls, and so of one tool each.
OF_TOOLS = (APPROVAL, DOUBT)
PAGE = 25
# Of requests for approval alone: each is a card with a form, which costs more than the line of another list.
PAGE_OF_APPROVALS = 10
_STOPPED = (Status.WAITING, Status.PAUSED)
Key = int | UUID
# Of the last line of a page: since when, the place of its kind among `KINDS`, and its key.
Cursor = tuple[datetime, int, Key]
Columns = QuerySet[Any, tuple[Any, ...]]


class Matches(Enum):
    """How many sessions meet a condition.

    FEW: some hundreds, which are read first for every kind of lines. SOME: a small part of all, with which the search
    for approvals and calls in doubt begins. MANY: others, of which the condition is asked of each line in its order.
    """

    FEW = auto()
    SOME = auto()
    MANY = auto()


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
    """

    entries: list[Entry]
    causes: dict[UUID, Cause]
    next: str
    numbers: dict[str, Count]


def open_approvals(now: datetime, where: Q | None = None) -> QuerySet[Approval]:
    """Requests that a person can still decide: on the present branch of a session that waits or is paused.

    :param where: Another condition on that session.
    """
    branch = Subquery(ToolCall.objects.filter(pk=OuterRef(OuterRef("call"))).order_by().values("branch")[:1])
    # By its key: of a session that does not meet the condition the call need not be read.
    session = Q(pk=OuterRef("session"))
    return _undecided(now).filter(_is_shown_by_a_stopped_session(branch, where, session))


def _undecided(now: datetime) -> QuerySet[Approval]:
    return Approval.objects.filter(Q(expires_at=None) | Q(expires_at__gt=now), decision="")


def calls_in_doubt(where: Q | None = None) -> QuerySet[ToolCall]:
    """The calls in doubt that a person can decide. ``where`` is that of `open_approvals`."""
    return _in_doubt().filter(_is_shown_by_a_stopped_session(OuterRef("branch"), where))


def _in_doubt() -> QuerySet[ToolCall]:
    return ToolCall.objects.filter(status=CallStatus.DOUBT)


def _is_shown_by_a_stopped_session(
    branch: Subquery | OuterRef, where: Q | None, session: Q | None = None
) -> Subquery:
    """Whether a session that waits or is paused, and meets the condition, is on this branch.

    :param session: Which session that would be, where it is known.

    PostgreSQL asks this of each line while an index gives the lines in their order. Of a join it would expect that next
    to no line meets all conditions, as if they were independent of each other, and would read and sort every line.
    """
    if where:
        found = Session.objects.filter(session or Q(), where, branch=branch, status__in=_STOPPED).order_by()
        return Subquery(found.values(is_there=Value(True))[:1])
    is_stopped = ExpressionWrapper(Q(status__in=_STOPPED), BooleanField())
    return Subquery(Session.objects.filter(branch=branch).order_by().values(is_stopped=is_stopped)[:1])


def stuck_sessions(now: datetime, where: Q | None = None) -> list[QuerySet[Session]]:
    """Sessions that should move by themselves and do not, as parts with an index each."""
    if where is None:
        moving = stuck.not_moving_conditions(now)
    else:
        # PostgreSQL would expect next to no session to be late, and read and sort all of them. It asks which are as an
        # index gives them in their order, as it does without another condition, where the plan is made for all times.
        moving = stuck.not_moving_conditions(now, compared=NotEstimated)
    conditions = [*moving, stuck.expired_but_not_rejected(now)]
    return [Session.objects.filter(where or Q(), condition) for condition in conditions]


def read_page(
    now: datetime,
    *,
    kinds: Sequence[str] = KINDS,
    where: Q | None = None,
    tool: str = "",
    after: str = "",
    oldest_first: bool = True,
    limit: int | None = None,
    matches: Matches = Matches.MANY,
) -> Entries:
    """One page of the kinds. One query for each, and one more for each of `BY_CAUSE` that has lines.

    :param where: A condition on the sessions. ``tool``: only calls of this tool, and so only the kinds `OF_TOOLS`.
    :param after: The cursor that the page before gave, in the same order; an invalid one gives the first page.
    :param matches: How many sessions meet the condition.
    """
    cursor = read_cursor(after)
    limit = limit or (PAGE_OF_APPROVALS if [*kinds] == [APPROVAL] else PAGE)
    entries: list[Entry] = []
    causes: dict[UUID, Cause] = {}
    numbers: dict[str, Count] = {}
    # To read as many lines as are counted costs little more than a page of them; to count them costs as much again.
    most = max(limit, MOST) + 1 if cursor is None else limit + 1
    kinds = [kind for kind in kinds if not tool or kind in OF_TOOLS]
    is_whole = not where and not tool and cursor is None
    rows = {} if is_whole else rows_by_kind(now, where, tool, matches)
    for kind in _COLUMNS:
        if kind in kinds:
            columns = (
                _first_of_kind(kind, now, oldest_first=oldest_first, most=most)
                if is_whole
                else list(_columns(rows[kind], kind, cursor, oldest_first=oldest_first, most=most))
            )
            entries += [Entry(kind, *values) for values in columns[: limit + 1]]
            if cursor is None:
                numbers[kind] = Count.of(len(columns))
    for kind in BY_CAUSE:
        if kind in kinds:
            found = failures.read_causes(where, changed=kind == CHANGED, few=matches is Matches.FEW)
            numbers[kind] = Count.of(len(found))
            by_oldest = {cause.oldest: cause for cause in found}
            entries += [
                entry
                for entry in _entries_of(kind, by_oldest)
                if cursor is None or (entry.order > cursor if oldest_first else entry.order < cursor)
            ]
            causes |= by_oldest
    entries.sort(key=lambda entry: entry.order, reverse=not oldest_first)
    shown, more = entries[:limit], len(entries) > limit
    return Entries(shown, causes, shown[-1].cursor if more else "", numbers)


def _first_of_kind(kind: str, now: datetime, *, oldest_first: bool, most: int) -> Sequence[tuple[Any, ...]]:
    """The columns of the first lines of all."""
    if kind == DOUBT:
        return _first_doubts(oldest_first=oldest_first, most=most)
    first = _first_approvals if kind == APPROVAL else _first_stuck
    return first(now, oldest_first=oldest_first, most=most)


@compiled
def _first_approvals(now: datetime, *, oldest_first: bool, most: int) -> Columns:
    return _columns([approvals(now, None)], APPROVAL, None, oldest_first=oldest_first, most=most)


@compiled
def _first_doubts(*, oldest_first: bool, most: int) -> Columns:
    return _columns([doubts(None)], DOUBT, None, oldest_first=oldest_first, most=most)


@compiled
def _first_stuck(now: datetime, *, oldest_first: bool, most: int) -> Columns:
    return _columns(stuck_sessions(now, None), STUCK, None, oldest_first=oldest_first, most=most)


def _columns(
    parts: Sequence[QuerySet[Any]], kind: str, cursor: Cursor | None, *, oldest_first: bool, most: int
) -> Columns:
    """The columns of the first lines behind the cursor."""
    since, *others = _COLUMNS[kind]
    beyond = _after(cursor, kind, since, oldest_first=oldest_first)
    sign = "" if oldest_first else "-"
    found = first_of_all([part.filter(beyond) for part in parts], (f"{sign}{since}", f"{sign}pk"), most)
    return found.values_list(since, "pk", *others, named=False)


def read_cursor(text: str) -> Cursor | None:
    """What `Entry.cursor` names; None for anything else."""
    time_text, _, rest = text.partition("_")
    kind, _, pk = rest.partition("_")
    time = read_time(time_text)
    if time is None or kind not in KINDS:
        return None
    try:
        return time, KINDS.index(kind), int(pk) if kind in (APPROVAL, DOUBT) and len(pk) < 19 else UUID(pk)
    except ValueError:
        return None


# By kind, the column by which its lines are ordered, and those of `Entry.version` and `Entry.expires_at`.
_COLUMNS = {
    APPROVAL: ("asked_at", "session__version", "expires_at"),
    DOUBT: ("started_at", "branch__session__version"),
    STUCK: ("updated_at", "version"),
}


def rows_by_kind(
    now: datetime, where: Q | None, tool: str = "", matches: Matches = Matches.MANY
) -> dict[str, list[QuerySet[Any]]]:
    """The rows of each kind but those `BY_CAUSE`, in the order of `KINDS`, as parts: see `finding.parts`."""
    return {
        APPROVAL: [approvals(now, where, tool, matches)],
        DOUBT: [doubts(where, tool, matches)],
        STUCK: stuck_sessions(now, where),
    }


def approvals(
    now: datetime, where: Q | None, tool: str = "", matches: Matches = Matches.MANY
) -> QuerySet[Approval]:
    if where and matches is not Matches.MANY:
        rows = _undecided(now).filter(call__branch__in=_shown(where))
    else:
        rows = open_approvals(now, where)
    return rows.filter(call__tool=tool) if tool else rows


def doubts(where: Q | None, tool: str = "", matches: Matches = Matches.MANY) -> QuerySet[ToolCall]:
    if where and matches is not Matches.MANY:
        rows = _in_doubt().filter(branch__in=_shown(where))
    else:
        rows = calls_in_doubt(where)
    return rows.filter(tool=tool) if tool else rows


def _shown(where: Q) -> QuerySet[Session, Any]:
    """The branches that sessions show which wait or are paused, and meet the condition.

    A join, unlike `_is_shown_by_a_stopped_session`: PostgreSQL begins with the sessions that meet it.
    """
    return Session.objects.filter(where, status__in=_STOPPED).order_by().values("branch")


def _after(cursor: Cursor | None, kind: str, since: str, *, oldest_first: bool) -> Q:
    if cursor is None:
        return Q()
    at, rank, pk = cursor
    beyond = "gt" if oldest_first else "lt"
    if KINDS.index(kind) != rank:
        at_that_time_too = (KINDS.index(kind) > rank) is oldest_first
        return Q(**{f"{since}__{beyond}e" if at_that_time_too else f"{since}__{beyond}": at})
    return Q(**{f"{since}__{beyond}e": at}) & (Q(**{f"{since}__{beyond}": at}) | Q(**{f"pk__{beyond}": pk}))


def _entries_of(kind: str, causes: dict[UUID, Cause]) -> list[Entry]:
    """The lines of the causes, which are of this kind. One query, if there are any."""
    keys = {key for cause in causes.values() for key in (cause.oldest, cause.newest)}
    rows = Session.objects.filter(pk__in=keys).values_list("pk", "updated_at", "version") if keys else []
    times = {pk: (at, version) for pk, at, version in rows}
    return [
        Entry(kind, times[oldest][0], oldest, (*times[oldest], times[cause.newest], cause.number))
        for oldest, cause in causes.items()
        if oldest in times and cause.newest in times
    ]
