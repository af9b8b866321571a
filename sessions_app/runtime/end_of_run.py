"""How a run lets go of its session: the next status, what it waits for, and the event that says so.

Called by the journal inside the transaction that ends the run, with the session row locked by its fence.
"""

from datetime import datetime, timedelta
from typing import Any

from django.db.models import F

from agentstate.durable.records import Stop
from sessions_app.history import restore
from sessions_app.models import Approval, Branch, Event, Session, ToolCall
from sessions_app.runtime.leases import Claim
from sessions_app.runtime.statements import Fence

Json = Any


def let_go(claim: Claim, branch: Branch, stop: Stop, fence: Fence, now: datetime) -> None:
    """Give the session its next status. What a person has asked meanwhile comes first."""
    status = stop.status
    if fence.stop_request == "cancel" and status in ("queued", "waiting", "paused"):
        status = "cancelled"
    elif fence.stop_request == "pause" and status == "queued":
        status = "paused"
    if status == stop.status:
        _ask(claim, branch, stop, now)
    values: dict[str, Json] = {
        "status": status,
        "waiting_for": stop.waiting_for if status == "waiting" else "",
        "error": stop.error,
        "worker": "",
        "lease_expires_at": None,
        "next_run_at": now + timedelta(seconds=stop.delay) if status == "queued" else None,
        "stop_request": "",
        "change": F("change") + 1,
        "updated_at": now,
    }
    if status not in ("paused", "cancelled"):  # there it is the reason of whoever asked for it
        values["why"] = stop.why
    if stop.event == "finished":
        values |= {"final_answer": stop.final_answer, "exit_reason": stop.exit_reason[:200]}
    if stop.event != "retry":
        values["attempt"] = 0
    if status != "queued":
        values["version"] = F("version") + 1
    if stop.progress is not None:
        values |= {
            "phase": stop.progress.phase,
            "previous_phase": stop.progress.previous,
            "phase_since": stop.progress.since,
            "totals": stop.progress.totals,
        }
    event = stop.event if status == stop.status else status
    if event:
        values["position"] = F("position") + 1
        Event.objects.create(
            session_id=claim.session_id,
            branch=branch,
            position=fence.position + 1,
            kind=event,
            actor_name=claim.worker,
            reason=stop.why or stop.error,
        )
    Session.objects.filter(pk=claim.session_id).update(**values)


def _ask(claim: Claim, branch: Branch, stop: Stop, now: datetime) -> None:
    mine = ToolCall.objects.filter(branch=branch)
    if stop.doubts:
        mine.filter(position__in=stop.doubts, status="started").update(status="doubt")
    pks = dict(mine.filter(position__in=[ask.position for ask in stop.asks]).values_list("position", "pk"))
    for ask in stop.asks:
        Approval.objects.get_or_create(
            call_id=pks[ask.position],
            defaults={
                "session_id": claim.session_id,
                "arguments": ask.arguments,
                "fingerprint": ask.fingerprint,
                "asked_at": now,
                "expires_at": now + timedelta(seconds=ask.ttl) if ask.ttl else None,
                "repeats": restore.left_behind(branch, ask.tool, ask.arguments) if ask.repeats else None,
            },
        )
