"""Leases: which worker may run a session, and until when.

A session has one writer. A claim gives it a new epoch, and every write of the run carries that epoch; a write with an
old one changes nothing. The lease only says when another worker may take the session over: its worker renews it with
each heartbeat, and a late renewal is valid as long as no other worker has claimed the session.

A claim or a renewal is one conditional UPDATE whose row count, or the row that it returns, says who was first. No lock
outlasts a transaction. A process that stops in the middle of a commit may lock the row for long: nothing here waits for
that. What is locked is left to the next wake-up or the next heartbeat. `now` can be given everywhere, so that no test
has to wait.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Self
from uuid import UUID

from django.conf import settings
from django.db import (
    Error,
    OperationalError,
    close_old_connections,
    connection,
    connections,
    transaction,
)
from django.db.models import F, Q, QuerySet
from django.utils import timezone

from agentstate.durable.port import LeaseLost
from sessions_app import locks
from sessions_app.mirror.live import session_changed
from sessions_app.models import Session, Status, Worker
from sessions_app.models.compiled import compiled
from sessions_app.runtime.own_agents import OwnAgents
from sessions_app.runtime.recovery import recover
from sessions_app.unavailable import in_one_line, may_pass

logger = logging.getLogger(__name__)

# How long a claim waits for the row's lock: longer than a commit takes. The sweep wakes the session again.
CLAIM_WAIT_SECONDS = 1.0
_TABLE = Session._meta.db_table
_TAKE = (
    f"UPDATE {_TABLE} SET status = %s, epoch = epoch + 1, attempt = attempt + 1, worker = %s, lease_expires_at = %s, "  # noqa: S608 - our own table
    "next_run_at = NULL, change = change + 1, updated_at = %s "
    f"WHERE id = (SELECT id FROM {_TABLE} WHERE id = %s AND status = %s AND next_run_at <= %s "
    "AND (%s::text[] IS NULL OR agent = ANY(%s::text[]) AND (definition = '' OR definition = ANY(%s::text[]))) "
    "FOR UPDATE SKIP LOCKED) "
    "RETURNING epoch, attempt, agent"
)


@dataclass(slots=True, eq=False)
class Claim:
    """The right to run a session until the lease ends. `lost` is set when a heartbeat finds that it is over.

    Until `lease_end` no other worker can have taken the session over; afterwards one may have.
    """

    session_id: UUID
    epoch: int
    worker: str
    attempt: int
    lease_end: datetime
    agent: str
    lost: threading.Event = field(default_factory=threading.Event, repr=False)

    def read_session(self) -> Session:
        """The session with its branch. One query.

        :raises LeaseLost: if the claim is over.
        """
        session = _claimed.first(self.session_id, self.epoch)
        if session is None:
            raise self.is_over()
        return session

    def is_over(self) -> LeaseLost:
        """What is raised where another worker may run the session by now."""
        return LeaseLost(f"epoch {self.epoch} of {self.session_id} is over")


@compiled
def _claimed(session_id: UUID, epoch: int) -> QuerySet[Session]:
    claimed = Session.objects.filter(pk=session_id, epoch=epoch, branch__isnull=False)
    return claimed.select_related("branch")


def claim(
    session_id: UUID, worker: str, now: datetime | None = None, *, own: OwnAgents | None = None
) -> Claim | None:
    """Claim a session that is due, or whose worker is lost.

    :param own: The agents of the worker, if it leaves sessions of others to other workers.
    :returns: None if it is neither, if another worker was first, if the session is locked, or if it is left to another
        worker.
    """
    now = now or timezone.now()
    if connection.vendor == "postgresql" and (claimed := _take(session_id, worker, now, own)) is not None:
        return claimed
    claimable = Session.objects.claimable(now).filter(pk=session_id)
    found = claimable.values_list("agent", "definition").first()
    if found is None or (own is not None and own.leaves(*found, now)):
        return None
    try:
        with locks.transaction_that_waits(CLAIM_WAIT_SECONDS):
            return _claim(session_id, worker, now)
    except OperationalError as error:
        if not locks.is_timeout(error):
            raise
        logger.warning("Session %s is locked, so it was not claimed.", session_id)
        return None


def _take(session_id: UUID, worker: str, now: datetime, own: OwnAgents | None) -> Claim | None:
    """Claim a session that is due, by one statement of PostgreSQL; None if it is not, if it is locked, or if its agent
    is not known to be one of the worker's own.
    """
    lease_end = _lease_end(now)
    keys, definitions = (None, None) if own is None else (own.keys, own.definitions)
    given: list[Any] = [Status.RUNNING.value, worker, lease_end, now]
    given += [session_id, Status.QUEUED.value, now, keys, keys, definitions]
    with connection.prepared_cursor() as cursor:  # type: ignore[attr-defined]
        cursor.execute(_TAKE, given)
        taken = cursor.fetchone()
    if taken is None:
        return None
    epoch, attempt, agent = taken
    session_changed(session_id)
    return Claim(session_id, epoch, worker, attempt, lease_end, agent)


def _claim(session_id: UUID, worker: str, now: datetime) -> Claim | None:
    # By the rules of the sweep: stop requests and the limit of attempts apply here too.
    recover(Session.objects.lost(now).filter(pk=session_id), now)
    before = Session.objects.due(now).filter(pk=session_id).values("epoch", "attempt", "agent").first()
    if before is None:
        return None
    epoch, attempt = before["epoch"] + 1, before["attempt"] + 1
    lease_end = _lease_end(now)
    won = (
        Session.objects.due(now)
        .filter(pk=session_id, **before)
        .update(
            status=Status.RUNNING,
            epoch=epoch,
            attempt=attempt,
            worker=worker,
            lease_expires_at=lease_end,
            next_run_at=None,
            change=F("change") + 1,
            updated_at=now,
        )
    )
    if not won:
        return None
    session_changed(session_id)
    return Claim(session_id, epoch, worker, attempt, lease_end, before["agent"])


def renew(claims: Iterable[Claim], now: datetime | None = None) -> set[Claim]:
    """Extend the leases of the claims; returns the claims that are still valid.

    A claim of a session that another process has locked is valid too: its lease is extended only if the lock is
    released soon.
    """
    by_key = {(claim.session_id, claim.epoch): claim for claim in claims}
    claimed = Q(pk__in=[])
    for session_id, epoch in by_key:
        claimed |= Q(pk=session_id, epoch=epoch)
    sessions = Session.objects.filter(claimed, status=Status.RUNNING)
    lease_end = _lease_end(now or timezone.now())
    with transaction.atomic():
        renewed = list(sessions.select_for_update(skip_locked=True).values_list("pk", "epoch"))
        sessions.filter(pk__in=[pk for pk, _ in renewed]).update(lease_expires_at=lease_end)
    locked = list(sessions.exclude(pk__in=[pk for pk, _ in renewed]).values_list("pk", "epoch"))
    # Most are locked by their own commit. Together these waits delay the next heartbeat by half its period at most.
    wait = settings.AGENTSTATE_HEARTBEAT_SECONDS / 2 / max(1, len(locked))
    renewed += [key for key in locked if _renew_one(sessions, key[0], lease_end, wait)]
    for key in renewed:
        by_key[key].lease_end = lease_end
    return {by_key[key] for key in sessions.values_list("pk", "epoch")}


def _renew_one(sessions: QuerySet[Session], session_id: UUID, lease_end: datetime, wait: float) -> bool:
    try:
        with locks.transaction_that_waits(wait):
            return bool(sessions.filter(pk=session_id).update(lease_expires_at=lease_end))
    except OperationalError as error:
        if not locks.is_timeout(error):
            raise
        logger.warning("Session %s is locked, so its lease was not renewed.", session_id)
        return False


def sign_off(worker: str, now: datetime | None = None) -> None:
    """Record that a worker process has shut down normally."""
    Worker.objects.filter(name=worker).update(stopped_at=now or timezone.now())


class Heartbeat:
    """A thread that records every few seconds that this worker is alive, and renews the leases of its claims.

    One serves a whole process:

        with Heartbeat("host:123") as heartbeat:
            with heartbeat.keeping(claim):
                ...  # claim.lost is set when another worker has taken the session over

    It outlives a database that is unavailable for a while: a claim that no other worker has taken is renewed then.

    :param also: Called at each heartbeat, in its thread.
    """

    def __init__(
        self, worker: str, every: float | None = None, *, also: Callable[[], object] = lambda: None
    ) -> None:
        self.worker = worker
        self._also = also
        self._every = settings.AGENTSTATE_HEARTBEAT_SECONDS if every is None else every
        self._claims: set[Claim] = set()
        self._started_at: datetime | None = None
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
    def keeping(self, claim: Claim) -> Iterator[Claim]:
        """Renew the lease of the claim until the block ends."""
        with self._lock:
            self._claims.add(claim)
        try:
            yield claim
        finally:
            with self._lock:
                self._claims.discard(claim)

    def beat(self, now: datetime | None = None) -> None:
        """One heartbeat. A claim whose session another worker has taken is marked as lost."""
        now = now or timezone.now()
        self._started_at = self._started_at or now
        with self._lock:
            claims = [claim for claim in self._claims if not claim.lost.is_set()]
        valid = renew(claims, now) if claims else set()
        for claim in claims:
            if claim not in valid:
                claim.lost.set()
        Worker.objects.bulk_create(
            [Worker(name=self.worker, started_at=self._started_at, beat_at=now)],
            update_conflicts=True,
            unique_fields=["name"],
            # Processes of a container that is started again have the names of those before.
            update_fields=["started_at", "beat_at", "stopped_at"],
        )

    def _run(self) -> None:
        try:
            while True:
                try:
                    self.beat()
                except Error as error:
                    trace = None if may_pass(error) else error
                    logger.warning(
                        "Worker %s missed a heartbeat: %s", self.worker, in_one_line(error), exc_info=trace
                    )
                close_old_connections()
                self._also()
                if self._stop.wait(self._every):
                    return
        finally:
            connections.close_all()


def _lease_end(now: datetime) -> datetime:
    return now + timedelta(seconds=settings.AGENTSTATE_LEASE_SECONDS)
