"""How a run ends in the database: the session's next status, what it waits for, and the event that says so.

Called by the journal inside the transaction that ends the run, with the session row locked by its fence.
"""

from datetime import datetime, timedelta
from typing import Any

from django.db import connection
from django.db.models import F

from agentstate.domain.phases import AgentPhase
from agentstate.durable.progress import Meter
from agentstate.durable.records import Progress
from agentstate.durable.run_end import (
    AgentChanged,
    ApprovalRequest,
    AtBreakpoint,
    Cancelled,
    Failed,
    Finished,
    GaveUp,
    InDoubt,
    NeedsApproval,
    NothingToDo,
    Paused,
    RetryLater,
    RunEnd,
)
from agentstate.durable.state.keys import same_json
from agentstate.names import CallState
from sessions_app.access.shown import cut_off
from sessions_app.history.failures import cause_key
from sessions_app.models import (
    Approval,
    EventKind,
    InboxMessage,
    Session,
    Status,
    StopRequest,
    ToolCall,
    record_event,
    resting_fields,
)
from sessions_app.runtime.state_columns import columns
from sessions_app.runtime.statements import Fence

Json = Any
# Characters of an error, or of why a session waits: each list of sessions reads them.
LONGEST_REASON = 4_000

# The statuses that a request of a person takes precedence over. A turn that has ended is not cancelled afterwards.
_OVERRULED = {
    StopRequest.PAUSE: (Status.QUEUED,),
    StopRequest.CANCEL: (Status.QUEUED, Status.WAITING, Status.PAUSED),
}


def end_run(
    session: Session,
    worker: str,
    end: RunEnd,
    fence: Fence,
    now: datetime,
    *,
    next_turn: Progress | None = None,
    read: int = 0,
) -> Status:
    """Write the session's next status. A pause or a cancel that a person has requested meanwhile takes precedence.

    :param session: As loaded by the run, with its branch; only its keys and its agent are read.
    :param next_turn: The progress of the next turn. If unread messages begin one, the session is queued for it.
    :param read: How many of the messages that the fence has counted are read, and deleted, by now.
    :returns: The session's next status.
    """
    if next_turn is not None and fence.unread <= read and not _came_while_fence_waited(session):
        next_turn = None
    intended = Status(end.status) if next_turn is None else Status.QUEUED
    overruling = _overruling_request(intended, fence.stop_request)
    status = overruling.status if overruling else intended
    if overruling is None:
        _record_open_decisions(session, end, now)
    reason = cut_off(end.reason, LONGEST_REASON)
    # An error has a field of its own.
    error, why = (reason, "") if isinstance(end, Failed) else ("", reason)
    values: dict[str, Json] = resting_fields(
        status,
        # A session that a person stopped has the reason of that person.
        why=None if overruling or isinstance(end, Paused | Cancelled) else why,
        waiting_for=end.waiting_for,
        now=now,
        delay=end.delay if isinstance(end, RetryLater) else 0.0,
    )
    values |= {
        "error": error,
        "change": F("change") + 1,
        "updated_at": now,
    }
    data = _event_data(session, end)
    if overruling is None and isinstance(end, Failed | GaveUp | AgentChanged):
        values["failure"] = cause_key(
            session.agent, data.get("tool", ""), end.reason, changed=isinstance(end, AgentChanged)
        )
    if isinstance(end, Finished):
        values |= {
            "final_answer": end.final_answer,
            "exit_reason": cut_off(end.exit_reason, 200),
            "breakpoint_hit": None,
        }
    if isinstance(end, AtBreakpoint) and overruling is None:
        values |= _breakpoint_fields(end, fence)
    if not isinstance(end, RetryLater):
        values["attempt"] = 0
    if status != Status.QUEUED:
        values["version"] = F("version") + 1
    if next_turn is not None:
        values |= progress_fields(next_turn)
    event = overruling.event if overruling else end.event
    if event:
        values["position"] = F("position") + 1
        record_event(
            session,
            EventKind(event),
            position=fence.position + 1,
            actor_name=worker,
            reason=reason,
            data=data,
            at=now,
        )
    Session.objects.filter(pk=session.pk).update(**values)
    return status


def turn_after_nothing(end: RunEnd, progress: Progress | None, now: datetime) -> Progress | None:
    """The progress of the turn that unread messages begin where a run has found nothing to do; None for other ends."""
    if progress is None or not isinstance(end, NothingToDo):
        return None
    meter = Meter(progress, lambda: now)
    meter.to(AgentPhase.PLANNING)
    return meter.progress()


def _came_while_fence_waited(session: Session) -> bool:
    """Whether there is a message that the fence has not counted. From now on the row is locked, and none can come.

    On PostgreSQL the fence counts what was there when its statement began, also where it has waited for the row since:
    whoever had locked the row may have stored a message, and found that the session was running.
    """
    return connection.vendor == "postgresql" and InboxMessage.objects.filter(session_id=session.pk).exists()


def _event_data(session: Session, end: RunEnd) -> dict[str, Json]:
    """The call whose failure ended the turn, or that the model's reply did: what a Resume lets be tried again."""
    if isinstance(end, Failed) and end.asks_again:
        return {"asks_again": True}
    if not isinstance(end, Failed) or end.tool_call is None:
        return {}
    return ToolCall.objects.get(branch=session.branch, position=end.tool_call).reference()


def _breakpoint_fields(end: AtBreakpoint, fence: Fence) -> dict[str, Json]:
    """Where the session waits, and the breakpoints that remain: one that was to stop it once is removed."""
    over = {breakpoint.number for breakpoint in end.breakpoints if breakpoint.once}
    remaining = [breakpoint for breakpoint in fence.breakpoints if breakpoint["number"] not in over]
    return {
        "breakpoint_hit": {**end.place.to_dict(), "calls": list(end.calls)},
        "breakpoints": remaining or None,
    }


def progress_fields(progress: Progress) -> dict[str, Json]:
    """The progress as fields of the session."""
    return {
        "phase": progress.phase,
        "previous_phase": progress.previous,
        "phase_since": progress.since,
        "totals": progress.totals,
    }


def _overruling_request(intended: Status, stop_request: str) -> StopRequest | None:
    """What a person has requested, if the session gets its status instead of the intended one."""
    request = StopRequest(stop_request) if stop_request else None
    return request if request and intended in _OVERRULED[request] else None


def _record_open_decisions(session: Session, end: RunEnd, now: datetime) -> None:
    """Mark the calls that wait for a person as in doubt, or store their approval requests."""
    calls = ToolCall.objects.filter(branch=session.branch)
    if isinstance(end, InDoubt):
        calls.filter(position__in=end.calls, status=CallState.STARTED).update(status=CallState.DOUBT)
    elif isinstance(end, NeedsApproval):
        positions = [request.position for request in end.requests]
        keys = dict(calls.filter(position__in=positions).values_list("position", "pk"))
        for request in end.requests:
            _store_request(session, keys[request.position], request, now)


def _store_request(session: Session, call_key: int, request: ApprovalRequest, now: datetime) -> None:
    """A call has one request. One that is open stays as it is, but for the effects and the State that it shows.

    One that was approved is open again: the call would follow effects that it did not show.
    """
    request_fields = {
        "fingerprint": request.fingerprint,
        "asked_at": now,
        "expires_at": now + timedelta(seconds=request.ttl) if request.ttl else None,
    }
    from_state = columns(request.from_state)
    shown = {"earlier": list(request.earlier) or None, "repeats_id": request.repeats, **from_state}
    approval, is_new = Approval.objects.get_or_create(
        call_id=call_key,
        defaults={"session_id": session.pk, "arguments": request.arguments, **request_fields, **shown},
    )
    if is_new:
        return
    changes: dict[str, Json] = shown
    if approval.from_state_digests != from_state["from_state_digests"]:
        # Whoever has a form of what was shown before has to look again.
        changes = {**shown, "fingerprint": request.fingerprint}
    if approval.decision:
        edited = None if same_json(request.arguments, approval.arguments) else request.arguments
        undecided = {"decision": "", "decided_at": None, "decided_by": "", "message": "", "edited": edited}
        changes = {**shown, **request_fields, **undecided}
    Approval.objects.filter(pk=approval.pk).update(**changes)
