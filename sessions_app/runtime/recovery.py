"""What the sweep does: sessions that lost their worker are released, and approval requests expire, many at a time.

Each batch is one transaction with a number of statements that does not depend on its size: its sessions are locked and
read in one, so that nothing changes between the look and the write, and those that change alike are written in one.
Each has its event in the audit trail. A session that is locked is left to the next sweep; nothing here waits. `now` can
be given everywhere, so that no test has to wait.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from itertools import islice, zip_longest
from typing import Any, NamedTuple
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.db.models import F, Min, QuerySet
from django.utils import timezone

from sessions_app.history.failures import cause_key
from sessions_app.mirror.live import session_changed
from sessions_app.models import (
    STOPPED,
    Approval,
    Event,
    EventKind,
    Session,
    Status,
    StopRequest,
    WaitingFor,
    insert_events,
    resting_fields,
    unsaved_event,
)

# How many due sessions one sweep wakes: enough to keep workers busy until the next.
SWEEP_LIMIT = 500
# Sessions that one transaction locks, on SQLite with all others, for a small part of a second.
BATCH = 200
SWEEP = "sweep"
# What the model is told of a call whose approval request has expired.
EXPIRED = "Nobody approved this call in time, so it was not run."

# What is read of a session. Its answer and its totals may be long.
_FIELDS = ("agent", "attempt", "branch", "position", "status", "stop_request", "waiting_for", "why", "worker")


class Change(NamedTuple):
    """What becomes of a session: its new values, and its events at its next positions."""

    session: Session
    values: dict[str, Any]
    events: Sequence[Event]


def sweep(now: datetime | None = None) -> list[UUID]:
    """Recover lost sessions and expire approval requests, except of sessions that are locked.

    :returns: Sessions that are due, see `_due`.
    """
    now = now or timezone.now()
    expired = Approval.objects.filter(
        decision="",
        expires_at__lte=now,
        session__branch=F("call__branch"),
        session__status__in=STOPPED,
    )
    _in_batches(expired.order_by().values_list("session", flat=True).distinct(), _expire, now)
    recover(Session.objects.lost(now), now)
    return _due(now)


def recover(lost: QuerySet[Session], now: datetime) -> None:
    """Release the sessions, all of them lost, except those that are claimed meanwhile or locked."""
    _in_batches(lost.order_by("lease_expires_at").values_list("pk", flat=True), _release_lost, now)


def _in_batches(
    keys: Iterable[UUID], change: Callable[[Sequence[UUID], datetime], Sequence[Change]], now: datetime
) -> None:
    keys = list(keys)
    for start in range(0, len(keys), BATCH):
        with transaction.atomic():
            _write(change(keys[start : start + BATCH], now), now)


def _locked(sessions: QuerySet[Session], keys: Sequence[UUID]) -> list[Session]:
    """Those of the sessions that nobody else has locked, as they are now."""
    return list(sessions.filter(pk__in=keys).only(*_FIELDS).select_for_update(skip_locked=True))


def _write(changes: Sequence[Change], now: datetime) -> None:
    """Sessions that get the same values are written by one statement, and all events are."""
    alike: dict[tuple[tuple[str, Any], ...], list[UUID]] = defaultdict(list)
    for session, values, events in changes:
        counters = {"position": F("position") + len(events), "change": F("change") + len(events)}
        alike[tuple({**values, **counters}.items())].append(session.pk)
        session_changed(session.pk)
    for values_of_all, keys in alike.items():
        sessions = Session.objects.filter(pk__in=keys)
        sessions.update(**dict(values_of_all), version=F("version") + 1, updated_at=now)
    insert_events([event for change in changes for event in change.events])


def _release_lost(keys: Sequence[UUID], now: datetime) -> list[Change]:
    return [_released(session, now) for session in _locked(Session.objects.lost(now), keys)]


def _due(now: datetime) -> list[UUID]:
    """The sessions that are due, longest first; of more than `SWEEP_LIMIT` as many of each agent, in turn.

    Otherwise those of an agent whose workers do not keep up would keep those of all others from running.
    """
    due = Session.objects.due(now).order_by("next_run_at").values_list("pk", flat=True)
    first = list(due[:SWEEP_LIMIT])
    if len(first) < SWEEP_LIMIT:
        return first
    agents = (
        Session.objects.due(now).values_list("agent").annotate(oldest=Min("next_run_at")).order_by("oldest")
    )
    of_agents = [due.filter(agent=key)[:SWEEP_LIMIT] for key, _ in agents[:SWEEP_LIMIT]]
    in_turn = (key for turn in zip_longest(*of_agents) for key in turn if key is not None)
    return list(islice(in_turn, SWEEP_LIMIT))


def _released(session: Session, now: datetime) -> Change:
    """Stop the session if that was requested; give up after too many attempts; otherwise queue it."""
    reason = ""
    if session.stop_request:
        request = StopRequest(session.stop_request)
        kind, reason = request.event, session.why
        values = resting_fields(request.status, now=now)
    elif session.attempt >= settings.AGENTSTATE_MAX_ATTEMPTS:
        kind = EventKind.GAVE_UP
        why = f"Its worker was lost {session.attempt} times in a row without getting any further."
        values = resting_fields(Status.WAITING, now=now, why=why, waiting_for=WaitingFor.RETRIES)
        values["failure"] = cause_key(session.agent, "", why)
    else:
        kind = EventKind.LOST
        values = resting_fields(Status.QUEUED, now=now)
    # The lost worker may only be slow: from here on it cannot write.
    values["epoch"] = F("epoch") + 1
    data = {"worker": session.worker, "attempt": session.attempt}
    event = unsaved_event(
        session, kind, position=session.position + 1, actor_name=SWEEP, reason=reason, data=data, at=now
    )
    return Change(session, values, [event])


def _expire(keys: Sequence[UUID], now: datetime) -> list[Change]:
    """Reject the calls whose approval requests have expired; a session continues when no request is open any more."""
    sessions = _locked(Session.objects.filter(status__in=STOPPED), keys)
    branches = [session.branch_id for session in sessions]
    open_requests: dict[int | None, list[Approval]] = defaultdict(list)
    for approval in Approval.objects.filter(call__branch__in=branches, decision="").select_related("call"):
        open_requests[approval.call.branch_id].append(approval)
    expired = {
        branch: [approval for approval in requests if approval.expires_at and approval.expires_at <= now]
        for branch, requests in open_requests.items()
    }
    Approval.objects.filter(
        pk__in=[approval.pk for requests in expired.values() for approval in requests]
    ).update(decision=Approval.Decision.EXPIRED, message=EXPIRED, decided_at=now)
    changes = []
    for session in sessions:
        rejected = expired.get(session.branch_id, [])
        if not rejected:
            continue
        values: dict[str, Any] = {}
        if session.waiting_for == WaitingFor.APPROVAL and len(rejected) == len(
            open_requests[session.branch_id]
        ):
            values = {**resting_fields(Status.QUEUED, now=now, why=""), "attempt": 0}
        events = [
            unsaved_event(
                session,
                EventKind.EXPIRED,
                position=session.position + number,
                actor_name=SWEEP,
                data=approval.call.reference(),
                at=now,
            )
            for number, approval in enumerate(rejected, start=1)
        ]
        changes.append(Change(session, values, events))
    return changes
