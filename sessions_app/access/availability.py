"""What may be done with a session in its current state: one rule per action, as a sentence that says why not.

A rule is a pure function of the rows that it gets. It returns "" where the action is possible. Which rule an
action has is declared in `sessions_app.action_list`; who may do the action is another matter, see
`sessions_app.access.roles`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from django.utils import timezone

from sessions_app.access.masking import Mask
from sessions_app.models import (
    STOPPED,
    Approval,
    Branch,
    CallStatus,
    Checkpoint,
    Session,
    Status,
    StopRequest,
    ToolCall,
    WaitingFor,
)
from sessions_app.models.rows import BranchRow

POSSIBLE = ""
CANCELLED = "It was cancelled. Rewind or fork it to continue."
ON_DISCARDED_BRANCH = "This call is in discarded history: the session continues without it."


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What the rules look at: the session with its branch, and the row that the action is about, if it is known.

    ``approval`` comes with its call. Without the row, a rule says only what holds for every row.
    """

    session: Session
    now: datetime
    checkpoint: Checkpoint | None = None
    call: ToolCall | None = None
    approval: Approval | None = None


Rule = Callable[[Facts], str]


def shows(branch: Branch, row: BranchRow) -> bool:
    """Whether `row` is part of the history that is visible on `branch`."""
    return branch.sees(row.branch_id, row.position)


def always(facts: Facts) -> str:
    return POSSIBLE


def send_message(facts: Facts) -> str:
    if facts.session.status == Status.CANCELLED:
        return CANCELLED
    if facts.session.stop_request == StopRequest.CANCEL:
        return "It is being cancelled."
    return POSSIBLE


def pause(facts: Facts) -> str:
    session = facts.session
    match session.status:
        case Status.QUEUED:
            return POSSIBLE
        case Status.RUNNING:
            return _already_stopping(session)
        case Status.WAITING:
            return "It is already waiting for a person."
        case Status.PAUSED:
            return "It is already paused."
        case Status.CANCELLED:
            return "It was cancelled."
        case _:
            return "It is not running."


def agent_cannot_run(session: Session) -> str:
    """Why the session's agent cannot run at all, "" if it can, masked. Reads ``session.registered_agent``."""
    agent = session.registered_agent
    if agent is None:
        return f"Its agent cannot run: no worker has an agent “{session.agent}”."
    if not agent.problem:
        return POSSIBLE
    return f"Its agent cannot be built: {Mask.configured().text(agent.problem).rstrip('.')}."


def resume(facts: Facts) -> str:
    session = facts.session
    match session.status:
        case Status.PAUSED:
            return agent_cannot_run(session)
        case Status.WAITING if session.waiting_for == WaitingFor.APPROVAL:
            return "It waits for an approval: approve or reject the call first."
        case Status.WAITING if session.waiting_for == WaitingFor.DOUBT:
            return "It waits for a decision on a call in doubt: decide it first."
        case Status.WAITING:
            return agent_cannot_run(session)
        case Status.RUNNING if session.stop_request == StopRequest.PAUSE:
            return POSSIBLE
        case Status.RUNNING:
            return _already_stopping(session) or "It is already running."
        case Status.QUEUED if session.next_run_at is not None and session.next_run_at > facts.now:
            return agent_cannot_run(session)
        case Status.QUEUED:
            return "It is already queued and starts as soon as a worker is free."
        case Status.CANCELLED:
            return CANCELLED
        case _ if session.is_failed:
            return agent_cannot_run(session)
        case _:
            return "It has finished. Send it a message to continue."


def cancel(facts: Facts) -> str:
    session = facts.session
    if session.status == Status.CANCELLED:
        return "It was already cancelled."
    if session.stop_request == StopRequest.CANCEL:
        return "It is already being cancelled."
    if session.status == Status.IDLE and not session.is_failed:
        return "It has finished; there is nothing to end."
    return POSSIBLE


def leave_from_checkpoint(facts: Facts) -> str:
    """For a rewind and a fork."""
    if facts.checkpoint is not None and not facts.checkpoint.complete:
        return "This checkpoint is mid-step. Choose the start of a step."
    return POSSIBLE


def undo(facts: Facts) -> str:
    branch = facts.session.branch
    return POSSIBLE if branch is not None and branch.undo_to_id else "There is no rewind to undo."


def decide(facts: Facts) -> str:
    call = facts.call
    if call is not None and call.branch_id != facts.session.branch_id:
        return ON_DISCARDED_BRANCH
    if call is not None and call.status != CallStatus.DOUBT:
        approval = getattr(call, "approval", None) if call.status == CallStatus.PLANNED else None
        if approval is not None and not approval.decision:
            return "This call is not in doubt: it waits for approval."
        return f"This call is not in doubt: it is {CallStatus(call.status).label}."
    return _while_stopped(facts.session)


def approve(facts: Facts) -> str:
    """For approving, and for reusing a recorded result: the agent then continues with the call."""
    return reject(facts) or agent_cannot_run(facts.session)


def reject(facts: Facts) -> str:
    approval = facts.approval
    if approval is None:
        return _while_stopped(facts.session)
    if approval.call.branch_id != facts.session.branch_id:
        return ON_DISCARDED_BRANCH
    if approval.decision:
        return already_decided(approval)
    if approval.expires_at is not None and approval.expires_at <= facts.now:
        return "The approval has expired."
    return _while_stopped(facts.session)


def repair(facts: Facts) -> str:
    match facts.session.status:
        case Status.RUNNING:
            return "It is running: pause it first."
        case Status.CANCELLED:
            return CANCELLED
        case _:
            return POSSIBLE


def repair_state(facts: Facts) -> str:
    hit = facts.session.at_breakpoint
    if hit is not None and hit["before"] == "tools":
        return "It stopped before a tool: change the call's arguments, or rewind to the start of the step."
    return repair(facts)


def change_arguments(facts: Facts) -> str:
    session, call = facts.session, facts.call
    if call is not None and call.branch_id != session.branch_id:
        return ON_DISCARDED_BRANCH
    hit = session.at_breakpoint
    if hit is None or hit["before"] != "tools":
        return "It is not stopped at a breakpoint before a tool."
    if call is None:
        return POSSIBLE
    if call.status != CallStatus.PLANNED:
        return f"This call is no longer waiting: it is {CallStatus(call.status).label}."
    approval = getattr(call, "approval", None)
    if approval is not None and approval.decision in (Approval.Decision.REJECTED, Approval.Decision.EXPIRED):
        return already_decided(approval)
    return POSSIBLE


def release(facts: Facts) -> str:
    return POSSIBLE if facts.session.status == Status.RUNNING else "No worker is running it."


def already_decided(approval: Approval) -> str:
    by = f" by {approval.decided_by}" if approval.decided_by else ""
    at = ""
    if approval.decided_at is not None:
        local = timezone.localtime(approval.decided_at)
        day = "" if local.date() == timezone.localdate() else f" on {local:%d %b %Y}"
        at = f"{day} at {local:%H:%M}"
    return f"It was already {Approval.Decision(approval.decision).label}{by}{at}."


def _while_stopped(session: Session) -> str:
    """Calls are decided while nothing can run them."""
    if session.status in STOPPED:
        return POSSIBLE
    return CANCELLED if session.status == Status.CANCELLED else "It is not waiting for a decision."


def _already_stopping(session: Session) -> str:
    if session.stop_request == StopRequest.CANCEL:
        return "It is being cancelled."
    if session.stop_request == StopRequest.PAUSE:
        return "It is already pausing: it stops when the current call ends."
    return POSSIBLE
