"""The queues of the desk: which sessions are in each, and one page of them.

Pages are keyset pages over ``(updated_at, id)``: page 1,000 costs what page 1 costs. The sessions of the inbox
and the stuck ones are ordered from the one that has waited longest, all others from the one that changed last.
"""

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import reduce
from operator import or_

from django.db.models import F, Q, QuerySet

from sessions_app.access.typed import read_time
from sessions_app.finding import stuck
from sessions_app.finding.counting import MOST, sessions_about
from sessions_app.finding.facets import Facets
from sessions_app.finding.newest import any_matching, first_matching, first_with_facets
from sessions_app.finding.parts import first_of_each, opaque
from sessions_app.models import Phase, Session, Status
from sessions_app.models.compiled import planned_anew
from sessions_app.models.selects import Sql, are_chosen, union

PAGE = 50
# Of those that a text finds, each with the places where it stands.
PAGE_OF_FOUND = 25
# Of a queue that most sessions are in, an index has a long list: so many sessions are read sooner, and asked whether
# they are in the queue.
ASKED_FOR_QUEUE = 10_000
# A list shows none of them, and decoding them costs more than reading the rest of the row.
_NOT_LISTED = ("inputs", "breakpoints", "breakpoint_hit", "totals", "final_answer")


Conditions = Callable[[datetime | None], list[Q]]


@dataclass(frozen=True, slots=True)
class Queue:
    """
    conditions: gives those of which a session in the queue meets one; each that has an index of its own is apart.
    empty: the sentence that an empty list shows.
    by_time: the conditions ask for the time. No index has the sessions in the order of the list then.
    """

    key: str
    title: str
    empty: str
    conditions: Conditions
    oldest_first: bool = False
    by_time: bool = False


def _always(*conditions: Q) -> Conditions:
    return lambda now: list(conditions)


def _do_not_move(now: datetime | None) -> list[Q]:
    assert now is not None, "the queue is `by_time`"
    return stuck.not_moving_conditions(now)


_WAITS, _HAS_FAILED = Q(status=Status.WAITING), Q(has_failed=True)
_RUNS = Q(status=Status.RUNNING), Q(status=Status.QUEUED)
_IS_DONE = Q(status=Status.CANCELLED), Q(status=Status.IDLE, phase=Phase.DONE)
# "Failed" and "Stuck" are those whose label is that, see `stuck.status_label`.
QUEUES = (
    Queue("running", "Running", "Nothing runs at the moment.", _always(*_RUNS)),
    Queue("waiting", "Waiting", "No session waits for a person.", _always(_WAITS)),
    Queue("failed", "Failed", "No session has failed.", _always(_HAS_FAILED)),
    Queue(
        "stuck",
        "Stuck",
        "No session is stuck.",
        _do_not_move,
        oldest_first=True,
        by_time=True,
    ),
    Queue("paused", "Paused", "No session is paused.", _always(Q(status=Status.PAUSED))),
    Queue("done", "Done", "No session has finished yet.", _always(*_IS_DONE)),
    Queue("all", "All", "There are no sessions yet.", _always(Q())),
)
# The sessions of the inbox, which has a page of its own: for going from one to the next, and for bulk actions.
ATTENTION = Queue(
    "attention",
    "Inbox",
    "Nothing needs attention.",
    lambda now: [_WAITS, _HAS_FAILED, *_do_not_move(now)],
    oldest_first=True,
    by_time=True,
)
BY_KEY = {queue.key: queue for queue in (ATTENTION, *QUEUES)}
# By the parameter of a list's address that asks for another order than the queue's: whether the oldest come first.
ORDERS = {"oldest": True, "newest": False}


def queue_filter(key: str, now: datetime | None) -> Q:
    """Which sessions are in a queue; the parameters are those of `conditions_of`."""
    return reduce(or_, conditions_of(key, now))


def conditions_of(key: str, now: datetime | None) -> list[Q]:
    """The conditions of a queue, see `Queue`.

    :param now: None will do for a queue that is not `Queue.by_time`.
    :raises KeyError: for a key of no queue.
    """
    return BY_KEY[key].conditions(now)


def keys_of_matching(
    where: Q, *, several: bool = False, facets: Facets | None = None, newest: bool = False
) -> tuple[list[uuid.UUID], bool]:
    """The keys of the sessions that match, up to `counting.MOST` and one, and whether they are all. One query.

    If they are all, they stand for the filter, which is asked once then and not for the list and for each queue.

    :param several: As that of `Asked`, as is ``facets``.
    :param newest: The keys are those of the sessions that changed last, of a filter of several fields.
    """
    if facets and not newest:
        where = are_chosen(any_matching(facets, MOST + 1))
    elif several:
        where = are_chosen(_first_of_several([Q()], Q(), where, facets, order_of(False), MOST + 1))
    keys = _keys(where, limit=MOST + 1)
    return keys, len(keys) <= MOST


@planned_anew
def _keys(where: Q, *, limit: int) -> QuerySet[Session, uuid.UUID]:
    return Session.objects.filter(where).order_by().values_list("pk", flat=True)[:limit]


def contradict(one: Q, other: Q) -> bool:
    """Whether both ask for another status or phase, so that no session meets them."""
    wanted, found = _wanted(one), _wanted(other)
    return any(wanted[name] != found[name] for name in wanted.keys() & found.keys())


def _wanted(condition: Q) -> dict[str, str]:
    """The status and the phase that each session which meets the condition has, where these are known."""
    wanted: dict[str, str] = {}
    if condition.negated or (condition.connector != Q.AND and len(condition.children) > 1):
        return wanted
    for child in condition.children:
        if isinstance(child, Q):
            wanted |= _wanted(child)
        elif child == ("has_failed", True):
            wanted |= {"status": Status.IDLE, "phase": Phase.ERROR}
        elif isinstance(child, tuple) and child[0] in ("status", "phase"):
            wanted[child[0]] = child[1]
    return wanted


@dataclass(frozen=True, slots=True)
class Asked:
    """What is asked of the sessions of a list besides its queue, and what decides how they are found.

    where: None for all sessions of the queue.
    several: It is a filter of several fields, which may hardly ever be met together.
    facets: The same as ``where``, if an index finds what is asked of a session.
    since: All that match have changed since then.
    few: It names some thousands of sessions at most by their keys.
    """

    where: Q | None = None
    several: bool = False
    facets: Facets | None = None
    since: datetime | None = None
    few: bool = False

    def beyond(self, ascending: bool) -> Q:
        """What keeps the oldest sessions, which have not changed since, from being read first."""
        return Q(updated_at__gte=self.since) if self.since and ascending else Q()


ALL = Asked()


@dataclass(frozen=True, slots=True)
class SessionsPage:
    """``next`` is the cursor of the next page, "" on the last."""

    sessions: list[Session]
    next: str


def read_page(
    key: str,
    *,
    now: datetime,
    asked: Asked = ALL,
    after: str = "",
    oldest_first: bool | None = None,
    limit: int = PAGE,
) -> SessionsPage:
    """One page of a queue, annotated with ``assignee_name``, without the fields that no list shows. One query, and with
    facets up to four estimates, each of them once a minute.

    :param after: The cursor that the page before gave; an invalid one gives the first page.
    :param oldest_first: The order, where it is not that of the queue.
    """
    ascending = BY_KEY[key].oldest_first if oldest_first is None else oldest_first
    cursor = read_cursor(after)
    beyond = beyond_of(*cursor, ascending=ascending) if cursor else asked.beyond(ascending)
    order = order_of(ascending)
    if asked.few:
        # Each of them is asked whether it is in the queue: an index of the queue has far more sessions.
        in_queue = queue_filter(key, now)
        found = Q(asked.where or Q(), beyond, Q(opaque(in_queue)) if in_queue else Q())
    else:
        conditions = possible(key, now, asked.where)
        asked = replace(asked, several=asked.several and not BY_KEY[key].by_time)
        found = first_in_order(conditions, asked, beyond, order, limit + 1)
    sessions = _listed(found, order=order, limit=limit + 1)
    more = len(sessions) > limit
    return SessionsPage(sessions[:limit], _cursor(sessions[limit - 1]) if more else "")


@planned_anew
def _listed(found: Q, *, order: tuple[str, str], limit: int) -> QuerySet[Session]:
    rows = Session.objects.filter(found).order_by(*order).defer(*_NOT_LISTED)
    return rows.annotate(assignee_name=F("assignee__username"))[:limit]


def first_in_order(conditions: Sequence[Q], asked: Asked, beyond: Q, order: tuple[str, str], limit: int) -> Q:
    """The condition of sessions among which the first ones are that match, and meet one of the conditions of a queue.

    :param asked: Of several fields only where an index has the sessions of each condition in the order.
    """
    if asked.several and asked.where:
        return are_chosen(_first_of_several(conditions, beyond, asked.where, asked.facets, order, limit))
    return _first_of_queue(conditions, asked.where, beyond, order, limit)


def _first_of_queue(
    conditions: Sequence[Q], where: Q | None, beyond: Q, order: tuple[str, str], limit: int
) -> Q:
    asked = [Q(condition, where or Q(), beyond) for condition in conditions]
    if len(asked) == 1:
        return asked[0]
    rows = [Session.objects.filter(condition) for condition in asked]
    return are_chosen(first_of_each(rows, order, limit))


def _first_of_several(
    conditions: Sequence[Q],
    beyond: Q,
    where: Q,
    facets: Facets | None,
    order: tuple[str, str],
    limit: int,
) -> Sql:
    """Selects the keys of the first sessions that meet a filter of several fields, of those that meet one of the
    conditions of a queue.
    """
    rows = [each & beyond for each in conditions]
    if not facets or not rows:
        return union([first_matching(each, where, order, limit) for each in rows])
    of_each = [facets.narrowed(rest=beyond, **_wanted(each)) for each in conditions]
    parts = list(zip(rows, of_each, strict=True))
    in_queue = reduce(or_, conditions)
    few_are_left = in_queue and sessions_about(facets.of_index) <= ASKED_FOR_QUEUE
    every = None
    if few_are_left and _are_most(conditions):
        # The index would compare lists of more than half of all sessions with those that have the other facets.
        every = facets.narrowed(rest=beyond & Q(opaque(in_queue)))
    return first_with_facets(parts, order, limit, every=every)


def _are_most(conditions: Sequence[Q]) -> bool:
    """Whether more than half of all sessions meet one of the conditions, which exclude each other.

    By estimates: at most one query for each condition and one for all sessions.
    """
    numbers = [sessions_about(condition) for condition in conditions]
    return 2 * sum(numbers) > sessions_about(Q())


def select(key: str, now: datetime, where: Q | None) -> QuerySet[Session]:
    """All sessions of a queue that match the filter ``where``."""
    conditions = possible(key, now, where)
    return (
        Session.objects.filter(reduce(or_, conditions), where or Q())
        if conditions
        else Session.objects.none()
    )


def parts(key: str, now: datetime, where: Q | None) -> list[QuerySet[Session]]:
    """What `select` gives in parts, some of which may have the same sessions: see `finding.parts`."""
    conditions = possible(key, now, where) or [Q(pk__in=[])]
    return [Session.objects.filter(condition, where or Q()) for condition in conditions]


def possible(key: str, now: datetime, where: Q | None) -> list[Q]:
    """The conditions of the queue without those that no session meets which matches the filter.

    Else the database would read every session that has failed for those of them that are planning.
    """
    conditions = conditions_of(key, now)
    return [condition for condition in conditions if not (where and contradict(where, condition))]


def order_of(ascending: bool) -> tuple[str, str]:
    return ("updated_at", "id") if ascending else ("-updated_at", "-id")


def beyond_of(updated_at: datetime, pk: uuid.UUID, *, ascending: bool) -> Q:
    if ascending:
        return Q(updated_at__gte=updated_at) & (Q(updated_at__gt=updated_at) | Q(id__gt=pk))
    return Q(updated_at__lte=updated_at) & (Q(updated_at__lt=updated_at) | Q(id__lt=pk))


def _cursor(session: Session) -> str:
    return f"{session.updated_at.isoformat()}_{session.pk}"


def read_cursor(text: str) -> tuple[datetime, uuid.UUID] | None:
    """The time and the id that `SessionsPage.next` names; None for anything else."""
    time_text, _, pk = text.partition("_")
    time = read_time(time_text)
    try:
        return (time, uuid.UUID(pk)) if time is not None else None
    except ValueError:
        return None
