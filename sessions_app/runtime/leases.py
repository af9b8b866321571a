"""Who may run a session: claim it, keep it, and find it again when its worker is gone.

A session has one writer. Whoever claims it gets a new epoch, and every write of the run carries it; a write
with an old epoch changes nothing. The lease only says when others may take the session over: its worker
renews it with each heartbeat, and a late renewal is good as long as nobody did.

Every change here is one conditional UPDATE whose row count says who was first; no lock is held between
transactions. `now` can be given everywhere, so that no test has to wait.
"""

import logging
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Self
from uuid import UUID

from django.conf import settings
from django.db import DatabaseError, close_old_connections, connections, transaction
from django.db.models import F, Q
from django.utils import timezone

from sessions_app.models import Approval, Event, Session, Status, StopRequest, WaitingFor, Worker

logger = logging.getLogger(__name__)

# How many due sessions one sweep wakes, oldest first: enough to keep workers busy until the next.
SWEEP_LIMIT = 500
LAPSED = "Nobody approved this call in time, so it was not run."


@dataclass(frozen=True, slots=True, eq=False)
class Claim:
    """The right to run a session until the lease ends. `lost` is set when a heartbeat finds that it is over."""

    session_id: UUID
    epoch: int
    worker: str
    attempt: int
    lost: threading.Event = field(default_factory=threading.Event, repr=False)


def claim(session_id: UUID, worker: str, now: datetime | None = None) -> Claim | None:
    """Take a session that is due, or whose worker is lost; None if it is neither, or somebody else was faster."""
    now = now or timezone.now()
    for session in Session.objects.lost(now).filter(pk=session_id):
        # It comes back by the rules of the sweep: a request to stop and the limit of attempts hold here too.
        _recover(session, now)
    found = Session.objects.claimable(now).filter(pk=session_id).values("epoch", "attempt").first()
    if found is None:
        return None
    epoch, attempt = found["epoch"] + 1, found["attempt"] + 1
    won = (
        Session.objects.claimable(now)
        .filter(pk=session_id, **found)
        .update(
            status=Status.RUNNING,
            epoch=epoch,
            attempt=attempt,
            worker=worker,
            lease_expires_at=_lease_end(now),
            next_run_at=None,
            change=F("change") + 1,
            updated_at=now,
        )
    )
    return Claim(session_id, epoch, worker, attempt) if won else None


def renew(claims: Iterable[Claim], now: datetime | None = None) -> set[UUID]:
    """Prolong the claims; returns the sessions that are still held."""
    held = Q(pk__in=[])
    for each in claims:
        held |= Q(pk=each.session_id, epoch=each.epoch)
    sessions = Session.objects.filter(held, status=Status.RUNNING)
    with transaction.atomic():
        sessions.update(lease_expires_at=_lease_end(now or timezone.now()))
        return set(sessions.values_list("pk", flat=True))


def sweep(now: datetime | None = None) -> list[UUID]:
    """Heal what is stuck: lost sessions and lapsed approvals. Returns the sessions that are due, longest first."""
    now = now or timezone.now()
    lapsed = Approval.objects.filter(
        decision="",
        expires_at__lte=now,
        session__branch=F("call__branch"),
        session__status__in=(Status.WAITING, Status.PAUSED),
    )
    for session_id in lapsed.order_by().values_list("session", flat=True).distinct():
        _expire(session_id, now)
    for session in Session.objects.lost(now):
        _recover(session, now)
    due = Session.objects.due(now).order_by("next_run_at")
    return list(due.values_list("pk", flat=True)[:SWEEP_LIMIT])


def sign_off(worker: str, now: datetime | None = None) -> None:
    """Note that a worker process has ended in good order."""
    Worker.objects.filter(name=worker).update(stopped_at=now or timezone.now())


class Heartbeat:
    """A thread that tells every few seconds that this worker lives, and renews the claims it holds.

    One serves a whole process:

        with Heartbeat("host:123") as heartbeat:
            with heartbeat.holding(claim):
                ...  # claim.lost is set when another worker has taken the session over

    Losing the database for a while is no reason to stop: a claim that nobody took is renewed when it is back.
    """

    def __init__(self, worker: str, every: float | None = None) -> None:
        self.worker = worker
        self._every = settings.AGENTSTATE_HEARTBEAT_SECONDS if every is None else every
        self._claims: set[Claim] = set()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"heartbeat of {worker}", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    @contextmanager
    def holding(self, claim: Claim) -> Iterator[Claim]:
        """Renew the claim until the block ends."""
        with self._lock:
            self._claims.add(claim)
        try:
            yield claim
        finally:
            with self._lock:
                self._claims.discard(claim)

    def beat(self, now: datetime | None = None) -> None:
        """One heartbeat. A claim whose session somebody else has taken is marked as lost."""
        now = now or timezone.now()
        with self._lock:
            claims = [claim for claim in self._claims if not claim.lost.is_set()]
        held = renew(claims, now) if claims else set()
        for claim in claims:
            if claim.session_id not in held:
                claim.lost.set()
        Worker.objects.bulk_create(
            [Worker(name=self.worker, started_at=now, beat_at=now)],
            update_conflicts=True,
            unique_fields=["name"],
            update_fields=["beat_at", "stopped_at"],
        )

    def _run(self) -> None:
        try:
            while True:
                try:
                    self.beat()
                except DatabaseError:
                    logger.warning("Worker %s missed a heartbeat.", self.worker, exc_info=True)
                close_old_connections()
                if self._stop.wait(self._every):
                    return
        finally:
            connections.close_all()


def _lease_end(now: datetime) -> datetime:
    return now + timedelta(seconds=settings.AGENTSTATE_LEASE_SECONDS)


def _recover(session: Session, now: datetime) -> None:
    """Take a lost session from its worker: it stops if asked to, gives up after too many attempts, or goes on."""
    data: dict[str, Any] = {"worker": session.worker, "attempt": session.attempt}
    fields: dict[str, Any]
    if session.stop_request:
        status = Status.CANCELLED if session.stop_request == StopRequest.CANCEL else Status.PAUSED
        kind, fields = status.value, {"status": status}
    elif session.attempt >= settings.AGENTSTATE_MAX_ATTEMPTS:
        kind = "gave_up"
        why = f"Its worker was lost {session.attempt} times in a row without getting any further."
        fields = {"status": Status.WAITING, "waiting_for": WaitingFor.RETRIES, "why": why}
    else:
        kind, fields = "lost", {"status": Status.QUEUED, "next_run_at": now}
    with transaction.atomic():
        won = (
            Session.objects.lost(now)
            # The version too: a request to stop that came since must not be overlooked.
            .filter(pk=session.pk, epoch=session.epoch, version=session.version)
            .update(
                **fields,
                # The lost worker may only be slow: from here on it cannot write.
                epoch=F("epoch") + 1,
                worker="",
                lease_expires_at=None,
                stop_request="",
                position=F("position") + 1,
                version=F("version") + 1,
                change=F("change") + 1,
                updated_at=now,
            )
        )
        if won:
            session.refresh_from_db(fields=["position"])
            _note(session, kind, now, data, reason=session.why if session.stop_request else "")


def _expire(session_id: UUID, now: datetime) -> None:
    """Let the session's lapsed approvals count as rejected; it goes on when none is open any more."""
    with transaction.atomic():
        session = Session.objects.select_for_update().get(pk=session_id)
        if session.status not in (Status.WAITING, Status.PAUSED):
            return
        still_open = Approval.objects.filter(call__branch=session.branch_id, decision="")
        for approval in still_open.filter(expires_at__lte=now).select_related("call"):
            approval.decision, approval.message = Approval.Decision.EXPIRED, LAPSED
            approval.decided_at = now
            approval.save()
            session.position += 1
            call = approval.call
            data = {"call": call.pk, "call_id": call.call_id, "tool": call.tool, "position": call.position}
            _note(session, "expired", now, data)
        if session.waiting_for == WaitingFor.APPROVAL and not still_open.exists():
            session.status, session.next_run_at, session.attempt = Status.QUEUED, now, 0
            session.waiting_for = session.why = ""
        session.version += 1
        session.change += 1
        session.updated_at = now
        session.save()


def _note(session: Session, kind: str, now: datetime, data: dict[str, Any], reason: str = "") -> None:
    Event.objects.create(
        session=session,
        branch_id=session.branch_id,
        position=session.position,
        kind=kind,
        actor_name="sweep",
        reason=reason,
        data=data,
        created_at=now,
    )
