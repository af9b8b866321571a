"""The workers: which are online, and whether any of them takes the sessions that are due."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from django.db.models import Exists, QuerySet

from sessions_app.desk.pages.context import PageContext
from sessions_app.models import RegisteredAgent, Session, Status, Worker, online_since
from sessions_app.models.compiled import compiled

# A session that has been due for so long should have been taken.
LATE = timedelta(seconds=15)
MOST_WORKERS = 200
MOST_SESSIONS = 1000
# What `str` of a session reads.
_NAMED_BY = ("title", "agent")
# Each start of a process is a worker of its own. One that ended so long ago is of no interest any more.
LISTED = timedelta(days=7)


def no_worker_for_due_sessions(now: datetime) -> bool:
    """Whether sessions are due and no worker is online. One small query, and a second one if sessions are due."""
    return bool(_late(now)) and not is_one_online(now)


def is_one_online(now: datetime) -> bool:
    """Whether a worker is online. One small query."""
    return bool(_online(online_since(now)))


@compiled
def _late(now: datetime) -> QuerySet[Session, UUID]:
    # Any of them: in an order of time, all would be read and sorted.
    return Session.objects.due(now - LATE).order_by().values_list("pk", flat=True)[:1]


@compiled
def _online(since: datetime) -> QuerySet[Worker, int]:
    return (
        Worker.objects.filter(stopped_at=None, beat_at__gte=since).order_by().values_list("pk", flat=True)[:1]
    )


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """A worker, with the running sessions that are leased to it.

    ``without_agents``: it is online, and no agent is published, by it or by anything else.
    """

    worker: Worker
    online: bool
    without_agents: bool
    sessions: list[Session]


def workers(context: PageContext) -> list[WorkerRow]:
    """The workers of the last week, the latest heartbeats first. Two queries."""
    listed = Worker.objects.filter(beat_at__gte=context.now - LISTED).order_by("-beat_at")
    rows = list(listed.annotate(published=Exists(RegisteredAgent.objects.all()))[:MOST_WORKERS])
    leased: dict[str, list[Session]] = {}
    names = [row.name for row in rows]
    running = Session.objects.filter(status=Status.RUNNING, worker__in=names).order_by("-updated_at")
    for session in context.mask.rows(running.only(*_NAMED_BY, "worker")[:MOST_SESSIONS]):
        leased.setdefault(session.worker, []).append(session)
    since = online_since(context.now)
    online = {row.name for row in rows if row.stopped_at is None and row.beat_at >= since}
    return [
        WorkerRow(
            row,
            online=row.name in online,
            without_agents=row.name in online and not row.published,
            sessions=leased.get(row.name, []),
        )
        for row in rows
    ]
