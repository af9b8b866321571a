"""The workers: who is alive, and whether anybody listens at all."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.conf import settings

from sessions_app.access.masking import Mask
from sessions_app.models import Session, Status, Worker

LATE = timedelta(seconds=15)


def alive_since(now: datetime) -> datetime:
    """A worker that has not beaten since then is taken for dead."""
    return now - timedelta(seconds=3 * settings.AGENTSTATE_HEARTBEAT_SECONDS)


def nobody_listens(now: datetime) -> bool:
    """Whether sessions are due and no worker has been heard of: two small queries, one while all is well."""
    if not Session.objects.due(now - LATE).exists():
        return False
    return not Worker.objects.filter(stopped_at=None, beat_at__gte=alive_since(now)).exists()


@dataclass(frozen=True, slots=True)
class Seen:
    worker: Worker
    alive: bool
    holds: list[Session]


def workers(now: datetime, mask: Mask, limit: int = 200) -> list[Seen]:
    """The workers heard of last, with the sessions that each holds. Two queries."""
    rows = list(Worker.objects.order_by("-beat_at")[:limit])
    held: dict[str, list[Session]] = {}
    for session in mask.rows(Session.objects.filter(status=Status.RUNNING).order_by("-updated_at")[:1000]):
        held.setdefault(session.worker, []).append(session)
    since = alive_since(now)
    return [
        Seen(row, row.stopped_at is None and row.beat_at >= since, held.get(row.name, [])) for row in rows
    ]
