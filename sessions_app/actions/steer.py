"""Pausing, resuming and cancelling a session, assigning it, and releasing it from its worker.

A session that a worker runs is only asked to stop: its worker obeys at its next commit, and then writes the event.
"""

from typing import Any
from uuid import UUID

from django.contrib.auth.models import User
from django.utils import timezone

from sessions_app.access.action import Action
from sessions_app.access.errors import Invalid
from sessions_app.access.roles import Actor
from sessions_app.action_list import ASSIGN, CANCEL, PAUSE, RELEASE, RESUME
from sessions_app.actions.attempts import plan_new_attempt, step_to_begin_again
from sessions_app.actions.base import (
    BY_FIELDS,
    asks_reason,
    begin_turn_if_over,
    check,
    commit,
    in_one_transaction,
    lock,
    optional_reason,
    queue,
    require,
    required_reason,
    set_status,
)
from sessions_app.actions.definition import accept_present_definition, require_shown_definition
from sessions_app.actions.history import go_back
from sessions_app.models import EventKind, Phase, Session, StaffPermission, Status, StopRequest


@asks_reason(PAUSE)
def pause(session: Session, actor: Actor, reason: str) -> Session:
    """Stop a queued session, or ask the worker of a running one to stop at its next commit."""
    return _stop(session, PAUSE, StopRequest.PAUSE, actor, reason)


@asks_reason(CANCEL)
def cancel(session: Session, actor: Actor, reason: str) -> Session:
    """End a session's work; only a rewind or a fork continues it. A running one is asked to stop."""
    return _stop(session, CANCEL, StopRequest.CANCEL, actor, reason)


@asks_reason(RESUME)
def resume(session: Session, actor: Actor, reason: str) -> Session:
    """Let a session continue: one that is paused, failed, out of retries, delayed, or asked to pause.

    A tool call whose failure ended the turn is tried again: with approval, unless its tool is idempotent.

    One whose agent has changed continues with the agent as it is now. A paused session at the end
    of a turn, without unread messages, becomes idle.
    """
    return _resume(session, actor, reason)


@in_one_transaction
def resume_as_shown(
    *,
    actor: Actor,
    session_id: UUID | str,
    reason: str,
    definition: str,
    expected_version: int | None = None,
) -> Session:
    """The same for a person who saw on a page with which definition of its agent the session continues.

    :param definition: The agent's new definition that the person was shown, "" if the page said nothing of one.
    :raises Moved: if the session would continue with a definition that was not shown.
    """
    require(actor, RESUME)
    reason = required_reason(reason)
    session = lock(session_id, expected_version)
    check(session, RESUME)
    return _resume(session, actor, reason, definition)


def _resume(session: Session, actor: Actor, reason: str, shown_definition: str | None = None) -> Session:
    now = timezone.now()
    told: dict[str, Any] = {}
    if session.breakpoint_hit:
        session.breakpoint_hit = {**session.breakpoint_hit, "passed": True}
    before = {
        "status": session.status,
        "waiting_for": session.waiting_for,
        "stop_request": session.stop_request,
    }
    if session.status == Status.RUNNING:
        session.stop_request = session.why = ""
    elif session.phase == Phase.DONE and not session.inbox.exists():
        set_status(session, Status.IDLE)
    else:
        if step := step_to_begin_again(session):
            told = go_back(session, step, session.current_branch, actor, reason, now)
        if session.new_definition and shown_definition is not None:
            require_shown_definition(session, shown_definition)
        else:
            accept_present_definition(session)
        if attempt := plan_new_attempt(session, now):
            told = attempt.reference()
        begin_turn_if_over(session, now)
        queue(session, now)
    data = {name: value for name, value in before.items() if value}
    return commit(session, RESUME.event, actor, reason, {**data, **told})


@asks_reason(RELEASE)
def release(session: Session, actor: Actor, reason: str) -> Session:
    """Take a running session from its worker: what that worker still writes is refused, and another may continue.

    A call that runs at this moment is not interrupted; unless it is idempotent, it is in doubt from then on. A pause or
    a cancellation that was requested takes effect.
    """
    data = {"worker": session.worker, "attempt": session.attempt}
    session.epoch += 1
    if session.stop_request:
        set_status(session, StopRequest(session.stop_request).status, why=session.why or reason)
    else:
        queue(session)
    return commit(session, RELEASE.event, actor, reason, data)


@in_one_transaction
def assign(
    *,
    actor: Actor,
    session_id: UUID | str,
    assignee: User | None,
    reason: str = "",
    expected_version: int | None = None,
) -> Session:
    """Assign the session to a colleague; None takes the assignment away."""
    require(actor, ASSIGN)
    reason = optional_reason(reason)
    check_assignee(assignee)
    session = lock(session_id, expected_version)
    check(session, ASSIGN)
    session.assignee = assignee
    return commit(
        session, ASSIGN.event, actor, reason, {"assignee": assignee.get_username() if assignee else ""}
    )


BY_FIELDS[ASSIGN] = assign


def check_assignee(assignee: User | None) -> None:
    """:raises Invalid: for a user who cannot see sessions."""
    if assignee is not None and not (assignee.is_active and Actor.of(assignee).may(StaffPermission.VIEW)):
        raise Invalid(f"{assignee.get_username()} cannot see sessions, so none can be assigned to them.")


def _stop(session: Session, action: Action, request: StopRequest, actor: Actor, reason: str) -> Session:
    if session.status == Status.RUNNING:
        session.stop_request = request
        # Kept by the worker when it obeys, so that the stopped session says why.
        session.why = reason
        return commit(session, EventKind.STOP_REQUESTED, actor, reason, {"request": request.value})
    set_status(session, request.status, why=reason)
    return commit(session, action.event, actor, reason)
