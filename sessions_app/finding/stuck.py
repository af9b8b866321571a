"""Sessions that should be moving and are not, or that wait for somebody longer than they should.

Nothing is marked: it is seen from the rows each time, so a session is stuck no longer as soon as it moves.
"""

from datetime import datetime, timedelta

from django.db.models import Exists, OuterRef, Q, QuerySet

from sessions_app.models import Approval, Session, Status
from sessions_app.wording import age

# A queued session that nobody has taken for so long.
OVERDUE = timedelta(seconds=60)
# A session that a living worker holds, and that has recorded nothing for so long: its model or tool hangs.
HANGING = timedelta(minutes=30)
# An approval, or another decision, that people have let lie for so long.
WAITED = timedelta(minutes=10)


def halted(now: datetime) -> Q:
    """Queued and running sessions that do not move: the worker is gone, none has come, or it hangs."""
    return (
        Q(status=Status.RUNNING, lease_expires_at__lt=now)
        | Q(status=Status.RUNNING, updated_at__lt=now - HANGING)
        | Q(status=Status.QUEUED, next_run_at__lt=now - OVERDUE)
    )


def neglected(now: datetime) -> Q:
    """Waiting sessions whose approval has lapsed, or that have waited for a person for long."""
    lapsed = Approval.objects.filter(
        decision="", expires_at__lte=now, session=OuterRef("pk"), call__branch=OuterRef("branch")
    )
    return Q(status=Status.WAITING) & (Q(updated_at__lt=now - WAITED) | Q(Exists(lapsed)))


def stuck(now: datetime) -> QuerySet[Session]:
    """All of them, longest first."""
    return Session.objects.filter(halted(now) | neglected(now)).order_by("updated_at", "pk")


def why_halted(session: Session, now: datetime) -> str:
    """Why the session does not move, in a sentence; "" if it does, or is not meant to. No query."""
    lease, due = session.lease_expires_at, session.next_run_at
    if session.status == Status.RUNNING and lease is not None and lease < now:
        return f"Its worker {session.worker} has not been heard of for {age(lease, now)} beyond its lease."
    if session.status == Status.RUNNING and session.updated_at < now - HANGING:
        return f"It runs, but nothing has been recorded for {age(session.updated_at, now)}."
    if session.status == Status.QUEUED and due is not None and due < now - OVERDUE:
        return f"It has been due for {age(due, now)}, and no worker has taken it."
    return ""
