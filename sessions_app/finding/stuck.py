"""Stuck sessions: those that should be moving and are not.

Nothing is stored: this is computed from the rows each time, so a session that moves is no longer stuck.
"""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from django.db.models import F, Q

from sessions_app import wording
from sessions_app.models import Approval, Session, Status
from sessions_app.wording import age, ago

# A queued session is overdue if no worker has taken it for so long.
OVERDUE = timedelta(seconds=60)
# A running session whose worker is online hangs if nothing has been recorded for so long.
HANGING = timedelta(minutes=30)
# A session waits too long if no person has decided for so long.
LONG_WAIT = timedelta(minutes=10)


def _as_it_is(time: datetime) -> datetime:
    return time


def not_moving_conditions(now: datetime, *, compared: Callable[[datetime], Any] = _as_it_is) -> list[Q]:
    """Queued and running sessions that do not move: the worker is lost, it hangs, or no worker has taken the session.

    The sessions of each condition are found by an index, in the order of its field of `LONGEST_FIRST`.

    :param compared: Makes of each time what the columns are compared with.
    """
    return [
        Q(status=Status.RUNNING, lease_expires_at__lt=compared(now)),
        Q(status=Status.RUNNING, updated_at__lt=compared(now - HANGING)),
        Q(status=Status.QUEUED, next_run_at__lt=compared(now - OVERDUE)),
    ]


# By each of these conditions, the field in whose order the sessions come that have been stuck for longest.
LONGEST_FIRST = ("lease_expires_at", "updated_at", "next_run_at")


def expired_but_not_rejected(now: datetime) -> Q:
    """Sessions that wait for an approval whose time is over, and that no sweep lets continue."""
    expired = Approval.objects.filter(
        decision="",
        expires_at__lte=now - OVERDUE,
        call__branch=F("session__branch"),
        session__status=Status.WAITING,
    )
    return Q(status=Status.WAITING, pk__in=expired.values("session"))


def status_label(session: Session, now: datetime) -> tuple[str, str]:
    """``(tone, label)`` of a session: as `wording.status_label`, and "Stuck" for one that should move and does not."""
    return ("error", "Stuck") if why_not_moving(session, now) else wording.status_label(session, now)


def stuck_from(session: Session) -> datetime | None:
    """From when on the session is stuck if nothing happens to it; None for one that need not move by itself."""
    if session.status == Status.RUNNING:
        return session.updated_at + HANGING
    if session.status == Status.QUEUED and session.next_run_at is not None:
        return session.next_run_at + OVERDUE
    return None


def _hangs(session: Session, now: datetime) -> bool:
    return session.status == Status.RUNNING and session.updated_at < now - HANGING


def why_not_moving(session: Session, now: datetime) -> str:
    """Why the session does not move, as a sentence; "" if it moves, or need not. No query."""
    lease, due = session.lease_expires_at, session.next_run_at
    if session.status == Status.RUNNING and lease is not None and lease < now:
        return f"The lease of its worker {session.worker} expired {ago(lease, now)} and was not renewed."
    if _hangs(session, now):
        return f"Running, but nothing has been recorded for {age(session.updated_at, now)}."
    if session.status == Status.QUEUED and due is not None and due < now - OVERDUE:
        return f"It has been due for {age(due, now)}, and no worker has taken it."
    return ""
