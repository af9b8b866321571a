"""Beside a session's own course: taking it from its worker, and noting something for colleagues."""

from uuid import UUID

from django.db import transaction
from django.utils import timezone

from sessions_app.access.roles import Actor
from sessions_app.actions.base import check, commit, given, lock, require, settle
from sessions_app.models import Event, Session, Status, StopRequest
from sessions_app.wake import wake


@transaction.atomic(durable=True)
def release(
    *, actor: Actor, session_id: UUID | str, reason: str, expected_version: int | None = None
) -> Session:
    """Take a running session from its worker: what that one still writes is refused, and another may go on.

    A call that runs at this moment is not interrupted; unless it may be repeated, it is in doubt from here on. Who
    had asked the session to pause or to end gets what they asked for.
    """
    require(actor, "release")
    reason = given("The reason", reason)
    session = lock(session_id, expected_version)
    check(session, "release")
    data = {"worker": session.worker, "attempt": session.attempt}
    asked = {StopRequest.PAUSE: Status.PAUSED, StopRequest.CANCEL: Status.CANCELLED}
    status = asked[StopRequest(session.stop_request)] if session.stop_request else Status.QUEUED
    session.epoch += 1
    settle(session, status, why="" if status == Status.QUEUED else session.why or reason, now=timezone.now())
    if status == Status.QUEUED:
        wake(session.pk)
    return commit(session, "released", actor, reason, data)


@transaction.atomic(durable=True)
def note(*, actor: Actor, session_id: UUID | str, text: str) -> Session:
    """Write something down for colleagues; the agent does not read it, and nobody's page is out of date by it."""
    require(actor, "note")
    text = given("The note", text, 2000)
    session = lock(session_id)
    session.position += 1
    session.change += 1
    Event.objects.create(
        session=session,
        branch=session.branch,
        position=session.position,
        kind="noted",
        actor=actor.user,
        actor_name=actor.name,
        reason=text,
    )
    session.save(update_fields=["position", "change"])
    return session
