"""The queues of the desk: which sessions are in each, how many, and one page of them.

Pages are keyset pages over ``(updated_at, id)``: page 1,000 costs what page 1 costs. Needs attention shows
who has waited longest first, all others what changed last.
"""

import uuid
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Count, Q, QuerySet

from sessions_app.finding.stuck import halted
from sessions_app.models import Phase, Session, Status

PAGE = 50
# Beyond so many neighbours on either side, nobody wants to know the exact number.
COUNTED = 500


@dataclass(frozen=True, slots=True)
class Queue:
    key: str
    title: str
    empty: str
    oldest_first: bool = False


QUEUES = (
    Queue("attention", "Needs attention", "Nobody waits for you.", oldest_first=True),
    Queue("running", "Running", "Nothing runs at the moment."),
    Queue("waiting", "Waiting", "No session waits for a person."),
    Queue("paused", "Paused", "No session is paused."),
    Queue("done", "Done", "No session has finished yet."),
    Queue("all", "All", "There are no sessions yet."),
)
BY_KEY = {queue.key: queue for queue in QUEUES}


def condition(key: str, now: datetime) -> Q:
    """Which sessions are in a queue."""
    match key:
        case "attention":
            return Q(status=Status.WAITING) | Q(status=Status.IDLE, phase=Phase.ERROR) | stuck(now)
        case "running":
            return Q(status__in=(Status.RUNNING, Status.QUEUED))
        case "waiting":
            return Q(status=Status.WAITING)
        case "paused":
            return Q(status=Status.PAUSED)
        case "done":
            return Q(status=Status.CANCELLED) | Q(status=Status.IDLE, phase=Phase.DONE)
        case _:
            return Q()


def stuck(now: datetime) -> Q:
    """Sessions that should be moving and are not: the worker is gone, none has come, or it hangs."""
    return halted(now)


@dataclass(frozen=True, slots=True)
class Counted:
    queue: Queue
    number: int


def counts(now: datetime) -> list[Counted]:
    """How many sessions are in each queue: two queries on small indexes."""
    by_state: dict[tuple[str, str], int] = {
        (row["status"], row["phase"]): row["n"]
        for row in Session.objects.order_by().values("status", "phase").annotate(n=Count("pk"))
    }
    late = Session.objects.filter(stuck(now)).count()

    def total(*statuses: str, phase: str = "") -> int:
        return sum(n for (status, ph), n in by_state.items() if status in statuses and phase in ("", ph))

    numbers = {
        "attention": total(Status.WAITING) + total(Status.IDLE, phase=Phase.ERROR) + late,
        "running": total(Status.RUNNING, Status.QUEUED),
        "waiting": total(Status.WAITING),
        "paused": total(Status.PAUSED),
        "done": total(Status.CANCELLED) + total(Status.IDLE, phase=Phase.DONE),
        "all": sum(by_state.values()),
    }
    return [Counted(queue, numbers[queue.key]) for queue in QUEUES]


@dataclass(frozen=True, slots=True)
class Page:
    """``next`` is the cursor of the next page, "" on the last."""

    sessions: list[Session]
    next: str


def page(key: str, *, now: datetime, where: Q | None = None, after: str = "", limit: int = PAGE) -> Page:
    """One page of a queue.

    :param after: The cursor that the page before gave; a broken one gives the first page.
    """
    queue = BY_KEY[key]
    rows = chosen(key, now, where).select_related("assignee", "branch").prefetch_related("tags")
    if cursor := _read_cursor(after):
        rows = rows.filter(_beyond(*cursor, ascending=queue.oldest_first))
    found = list(rows.order_by(*_order(queue.oldest_first))[: limit + 1])
    more = len(found) > limit
    return Page(found[:limit], _cursor(found[limit - 1]) if more else "")


@dataclass(frozen=True, slots=True)
class Neighbours:
    """``place`` is where the session stands among the ``total``, both counted up to `COUNTED` on either side."""

    previous: uuid.UUID | None
    following: uuid.UUID | None
    place: int
    total: int
    more: bool


def neighbours(session: Session, key: str, *, now: datetime, where: Q | None = None) -> Neighbours:
    """The sessions before and after this one in a queue, and how many there are: two queries of `COUNTED` ids each."""
    ascending = BY_KEY[key].oldest_first
    rows = chosen(key, now, where).exclude(pk=session.pk).values_list("pk", flat=True)
    here = (session.updated_at, session.pk)
    after, before = (
        list(rows.filter(_beyond(*here, ascending=way)).order_by(*_order(way))[: COUNTED + 1])
        for way in (ascending, not ascending)
    )
    numbers = [min(len(found), COUNTED) for found in (before, after)]
    return Neighbours(
        before[0] if before else None,
        after[0] if after else None,
        place=numbers[0] + 1,
        total=sum(numbers) + 1,
        more=max(len(before), len(after)) > COUNTED,
    )


def chosen(key: str, now: datetime, where: Q | None) -> QuerySet[Session]:
    """All sessions of a queue that fit the filter."""
    rows = Session.objects.filter(condition(key, now))
    return rows.filter(where) if where is not None else rows


def _order(ascending: bool) -> tuple[str, str]:
    return ("updated_at", "id") if ascending else ("-updated_at", "-id")


def _beyond(updated_at: datetime, pk: uuid.UUID, *, ascending: bool) -> Q:
    if ascending:
        return Q(updated_at__gte=updated_at) & (Q(updated_at__gt=updated_at) | Q(id__gt=pk))
    return Q(updated_at__lte=updated_at) & (Q(updated_at__lt=updated_at) | Q(id__lt=pk))


def _cursor(session: Session) -> str:
    return f"{session.updated_at.isoformat()}_{session.pk}"


def _read_cursor(text: str) -> tuple[datetime, uuid.UUID] | None:
    at, _, pk = text.partition("_")
    try:
        return datetime.fromisoformat(at), uuid.UUID(pk)
    except ValueError:
        return None
