"""Pausing, resuming and cancelling a session, and giving it to a colleague.

A session that a worker holds is only asked to stop: its worker obeys at its next commit, and then writes
the event.
"""

from uuid import UUID

from django.contrib.auth.models import User
from django.db import transaction
from django.utils import timezone

from sessions_app.access.errors import Invalid
from sessions_app.access.roles import Actor
from sessions_app.actions.base import begin_turn_if_over, check, commit, fit, given, lock, require, settle
from sessions_app.models import Phase, Session, Status, StopRequest, WaitingFor
from sessions_app.wake import wake


@transaction.atomic(durable=True)
def pause(
    *, actor: Actor, session_id: UUID | str, reason: str, expected_version: int | None = None
) -> Session:
    """Stop a queued session, or ask the worker of a running one to stop at its next commit."""
    require(actor, "pause")
    reason = given("The reason", reason)
    session = lock(session_id, expected_version)
    check(session, "pause")
    return _stop(session, StopRequest.PAUSE, actor, reason)


@transaction.atomic(durable=True)
def cancel(
    *, actor: Actor, session_id: UUID | str, reason: str, expected_version: int | None = None
) -> Session:
    """End a session's work; only a rewind or a fork goes on from it. A running one is asked to stop."""
    require(actor, "cancel")
    reason = given("The reason", reason)
    session = lock(session_id, expected_version)
    check(session, "cancel")
    return _stop(session, StopRequest.CANCEL, actor, reason)


@transaction.atomic(durable=True)
def resume(
    *, actor: Actor, session_id: UUID | str, reason: str, expected_version: int | None = None
) -> Session:
    """Let a session go on: one that is paused, failed, out of retries, delayed, or asked to pause.

    One that waited because its agent had changed goes on with the agent as it is now. A paused session at
    the end of a turn, with nothing new to read, is simply idle again.
    """
    require(actor, "resume")
    reason = given("The reason", reason)
    session = lock(session_id, expected_version)
    now = timezone.now()
    check(session, "resume", now=now)
    was = {"status": session.status, "waiting_for": session.waiting_for, "stop_request": session.stop_request}
    if session.status == Status.RUNNING:
        session.stop_request = session.why = ""
    elif session.phase == Phase.DONE and not session.inbox.exists():
        settle(session, Status.IDLE)
    else:
        if session.waiting_for == WaitingFor.CHANGED:
            session.definition = ""
        begin_turn_if_over(session, now)
        settle(session, Status.QUEUED, now=now)
        wake(session.pk)
    return commit(session, "resumed", actor, reason, {name: value for name, value in was.items() if value})


@transaction.atomic(durable=True)
def assign(
    *,
    actor: Actor,
    session_id: UUID | str,
    assignee: User | None,
    reason: str = "",
    expected_version: int | None = None,
) -> Session:
    """Give the session to a colleague, or to nobody."""
    require(actor, "assign")
    reason = fit("The reason", reason)
    check_assignee(assignee)
    session = lock(session_id, expected_version)
    check(session, "assign")
    session.assignee = assignee
    return commit(
        session, "assigned", actor, reason, {"assignee": assignee.get_username() if assignee else ""}
    )


def check_assignee(assignee: User | None) -> None:
    """:raises Invalid: for somebody who cannot see sessions."""
    if assignee is not None and not (assignee.is_active and Actor.of(assignee).may("view")):
        raise Invalid(f"{assignee.get_username()} cannot see sessions, so none can be assigned to them.")


def _stop(session: Session, request: StopRequest, actor: Actor, reason: str) -> Session:
    if session.status == Status.RUNNING:
        session.stop_request = request
        # Kept by the worker when it obeys, so that the stopped session says why.
        session.why = reason
        return commit(session, "stop_requested", actor, reason, {"request": request.value})
    stopped = {StopRequest.PAUSE: Status.PAUSED, StopRequest.CANCEL: Status.CANCELLED}[request]
    settle(session, stopped, why=reason)
    return commit(session, stopped.value, actor, reason)
