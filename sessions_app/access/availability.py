"""What may be done with a session in its present state: one question, for the actions and for the buttons.

`why_not` is a pure function of the rows it is given. Who may do it is another matter, see
`sessions_app.access.roles`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from django.utils import timezone

from sessions_app.models import (
    Approval,
    Branch,
    CallStatus,
    Checkpoint,
    Phase,
    Session,
    Status,
    StopRequest,
    ToolCall,
    WaitingFor,
)
from sessions_app.models.rows import BranchRow

CANCELLED = "It was cancelled. Rewind it or fork it to go on."


@dataclass(frozen=True, slots=True)
class _Facts:
    session: Session
    now: datetime
    checkpoint: Checkpoint | None
    call: ToolCall | None
    approval: Approval | None


def why_not(
    session: Session,
    act: str,
    *,
    checkpoint: Checkpoint | None = None,
    call: ToolCall | None = None,
    approval: Approval | None = None,
    now: datetime | None = None,
) -> str | None:
    """Why `act` (one of `ACTS`) is impossible now, as a sentence for the person who wants it; None if it is
    possible.

    Give the `checkpoint` for rewind and fork, the `call` for decide, the `approval` with its call for
    approve and reject. Reads `session.branch` for undo, decide, approve and reject, so select it along.
    """
    return _RULES[act](_Facts(session, now or timezone.now(), checkpoint, call, approval))


def shows(branch: Branch, row: BranchRow) -> bool:
    """Whether `row` is part of the history that is visible on `branch`."""
    return branch.sees(row.branch_id, row.position)


def _message(facts: _Facts) -> str | None:
    if facts.session.status == Status.CANCELLED:
        return CANCELLED
    if facts.session.stop_request == StopRequest.CANCEL:
        return "It is being cancelled."
    return None


def _pause(facts: _Facts) -> str | None:
    session = facts.session
    match session.status:
        case Status.QUEUED:
            return None
        case Status.RUNNING:
            return _stopping(session)
        case Status.WAITING:
            return "It already waits for a person."
        case Status.PAUSED:
            return "It is already paused."
        case Status.CANCELLED:
            return "It was cancelled."
        case _:
            return "It is not running."


def _resume(facts: _Facts) -> str | None:
    session = facts.session
    match session.status:
        case Status.PAUSED:
            return None
        case Status.WAITING if session.waiting_for == WaitingFor.APPROVAL:
            return "It waits for an approval: approve or reject the call first."
        case Status.WAITING if session.waiting_for == WaitingFor.DOUBT:
            return "It waits for a decision on a call in doubt: decide it first."
        case Status.WAITING:
            return None
        case Status.RUNNING if session.stop_request == StopRequest.PAUSE:
            return None
        case Status.RUNNING:
            return _stopping(session) or "It is already running."
        case Status.QUEUED if session.next_run_at is not None and session.next_run_at > facts.now:
            return None
        case Status.QUEUED:
            return "It is already queued and starts as soon as a worker is free."
        case Status.CANCELLED:
            return CANCELLED
        case _:
            return None if session.phase == Phase.ERROR else "It has finished. Send it a message to go on."


def _cancel(facts: _Facts) -> str | None:
    session = facts.session
    if session.status == Status.CANCELLED:
        return "It was already cancelled."
    if session.stop_request == StopRequest.CANCEL:
        return "It is already being cancelled."
    if session.status == Status.IDLE and session.phase != Phase.ERROR:
        return "It has finished; there is nothing to cancel."
    return None


def _from_checkpoint(facts: _Facts) -> str | None:
    if facts.checkpoint is not None and not facts.checkpoint.complete:
        return "This checkpoint lies inside a step. Choose the start of a step."
    return None


def _undo(facts: _Facts) -> str | None:
    branch = facts.session.branch
    return None if branch is not None and branch.undo_to_id else "There is no rewind to undo."


def _decide(facts: _Facts) -> str | None:
    call = facts.call
    if call is not None and call.branch_id != facts.session.branch_id:
        return "This call was left behind by a rewind; it is no part of the present history."
    if call is not None and call.status != CallStatus.DOUBT:
        return f"This call is not in doubt: it is {CallStatus(call.status).label}."
    return _while_stopped(facts.session)


def _answer(facts: _Facts) -> str | None:
    approval = facts.approval
    if approval is None:
        return _while_stopped(facts.session)
    if approval.call.branch_id != facts.session.branch_id:
        return "This call was left behind by a rewind; it is no part of the present history."
    if approval.decision:
        return decided_already(approval)
    if approval.expires_at is not None and approval.expires_at <= facts.now:
        return "The time to approve this call is over."
    return _while_stopped(facts.session)


def decided_already(approval: Approval) -> str:
    by = f" by {approval.decided_by}" if approval.decided_by else ""
    return f"It was already {Approval.Decision(approval.decision).label}{by}."


def _while_stopped(session: Session) -> str | None:
    """Calls are decided while nothing can run them."""
    match session.status:
        case Status.WAITING | Status.PAUSED:
            return None
        case Status.CANCELLED:
            return CANCELLED
        case _:
            return "It does not wait for a decision."


def _stopping(session: Session) -> str | None:
    if session.stop_request == StopRequest.CANCEL:
        return "It is being cancelled."
    if session.stop_request == StopRequest.PAUSE:
        return "It already pauses as soon as the present call has ended."
    return None


def _repair(facts: _Facts) -> str | None:
    match facts.session.status:
        case Status.RUNNING:
            return "It is running: pause it first."
        case Status.CANCELLED:
            return CANCELLED
        case _:
            return None


def _release(facts: _Facts) -> str | None:
    return None if facts.session.status == Status.RUNNING else "No worker holds it."


def _always(facts: _Facts) -> str | None:
    return None


_RULES: dict[str, Callable[[_Facts], str | None]] = {
    "message": _message,
    "pause": _pause,
    "resume": _resume,
    "cancel": _cancel,
    "rewind": _from_checkpoint,
    "undo": _undo,
    "fork": _from_checkpoint,
    "decide": _decide,
    "approve": _answer,
    "reject": _answer,
    "withdraw": _always,
    "assign": _always,
    "repair": _repair,
    "release": _release,
    "note": _always,
}

ACTS = tuple(_RULES)
