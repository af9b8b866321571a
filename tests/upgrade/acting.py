"""Carries each session of a database on to its end, as people and workers would, and tells how it ended.

`tests/upgrade/make_dump.py` does it with the version that made a stored database, `tests/upgrade/check.py` with the
present one: both have to come to the same end.
"""

from typing import Any

from django.utils import timezone

from sessions_app import actions
from sessions_app.access.roles import Actor
from sessions_app.actions import bulk
from sessions_app.history import restore
from sessions_app.models import (
    Approval,
    BulkAction,
    CallStatus,
    Checkpoint,
    Phase,
    Session,
    Status,
    ToolCall,
    WaitingFor,
)
from sessions_app.runtime import recovery
from sessions_app.runtime.worker import drive

PERSON = Actor.system("after the upgrade")
REASON = "after the upgrade"
# No session needs so many actions until it rests.
MOST = 40


def act_on_all() -> dict[str, list[list[str]]]:
    """Work off the bulk actions, then carry every session on, undo its last rewind, and send it a message.

    :returns: By the title of each session, for each action: its name, and the status, phase and answer after it.
    :raises AssertionError: for a session that does not come to an end.
    """
    for bulk_action in BulkAction.objects.order_by("pk"):
        while bulk.run_batch(bulk_action.pk):
            pass
    return {session.title: _act_on(session) for session in Session.objects.order_by("created_at", "id")}


def _act_on(session: Session) -> list[list[str]]:
    told = [_told("carried on", carry_on(session))]
    if _fresh(session).branch.undo_to_id:  # type: ignore[union-attr]
        actions.undo(actor=PERSON, session_id=session.pk, reason=REASON)
        told.append(_told("undone", carry_on(session)))
    if _fresh(session).status == Status.IDLE:
        actions.send_message(actor=PERSON, session_id=session.pk, text="look afterwards")
        told.append(_told("talked to", carry_on(session)))
    return told


def carry_on(session: Session) -> Session:
    """Do what the session waits for, and drive it, until it rests.

    A failed one is tried once more. A cancelled one is rewound to its last checkpoint and goes on from there; one
    that had not begun stays cancelled.

    :raises AssertionError: if it does not come to an end.
    """
    tried = False
    for _ in range(MOST):
        session = _fresh(session)
        how: dict[str, Any] = {"actor": PERSON, "session_id": session.pk, "reason": REASON}
        match session.status:
            case Status.QUEUED:
                _drive(session)
            case Status.RUNNING:
                assert session.lease_expires_at is not None
                if session.lease_expires_at < timezone.now():
                    _drive(session)
                else:
                    actions.release(**how)
            case Status.WAITING if session.waiting_for == WaitingFor.APPROVAL:
                _answer_approvals(session)
            case Status.WAITING if session.waiting_for == WaitingFor.DOUBT:
                _decide_doubts(session)
            case Status.WAITING | Status.PAUSED:
                actions.resume(**how)
            case Status.CANCELLED:
                point = _last_checkpoint(session)
                if point is None:
                    return session
                actions.rewind(**how, checkpoint_id=point.pk, run=True)
            case _ if session.phase == Phase.ERROR and not tried:
                tried = True
                actions.resume(**how)
            case _:
                return session
    raise AssertionError(f"{session.title!r} does not come to an end: it is {session.status}, {session.why}")


def _fresh(session: Session) -> Session:
    return Session.objects.select_related("branch").get(pk=session.pk)


def _drive(session: Session) -> None:
    # A session that is due later is driven at once.
    Session.objects.filter(pk=session.pk, status=Status.QUEUED).update(next_run_at=timezone.now())
    before = session.epoch
    became = drive(session.pk, worker="worker-after")
    # A lost session that was asked to stop is stopped by the claim itself. Its epoch tells that from a failure.
    moved = _fresh(session).epoch > before
    assert became not in ("busy", "lost") or moved, f"{session.title!r} could not be driven: {became}"


def _answer_approvals(session: Session) -> None:
    asked = Approval.objects.filter(call__branch=session.branch, decision="").order_by("call__position")
    if asked.filter(expires_at__lte=timezone.now()).exists():
        recovery.sweep()
        return
    for approval in asked.select_related("call", "repeats"):
        how: dict[str, Any] = {"actor": PERSON, "session_id": session.pk, "call_id": approval.call.pk}
        if approval.repeats is not None and approval.repeats.status == CallStatus.DONE:
            actions.reuse(**how)
        else:
            actions.approve(**how, fingerprint=approval.fingerprint)


def _decide_doubts(session: Session) -> None:
    doubts = ToolCall.objects.filter(branch=session.branch, status=CallStatus.DOUBT).order_by("position")
    for call in doubts:
        # Its tool returns an object, and says so from this version on.
        result = '{"letter": "it took effect"}' if call.tool == "send_letter" else "it took effect"
        actions.decide(actor=PERSON, session_id=session.pk, call_id=call.pk, result=result, reason=REASON)


def _last_checkpoint(session: Session) -> Checkpoint | None:
    assert session.branch is not None
    found = restore.last_visible(Checkpoint, session.branch)
    assert found is None or found.complete, "none of the stored sessions was cancelled inside a step"
    return found


def _told(action: str, session: Session) -> list[str]:
    return [action, session.status, session.phase, session.final_answer]
