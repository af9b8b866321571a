"""A new attempt of what ended a turn: a tool call that failed, or a reply that names an unknown tool.

Only a person's Resume starts one. A call that has ended never changes and never runs again by itself: the attempt is a
call of its own, of the same model reply, with the same idempotency key, and with the arguments that a person has set
for the failed call, if any. Unless its tool is idempotent, the run asks for its approval first. Where the reply itself
ended the turn nothing has run: the session goes back to the start of the step, and the model is asked again.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.db.models import Q

from agentstate.names import STEP_KINDS
from sessions_app.history import restore
from sessions_app.history.failures import newest_failure
from sessions_app.models import Approval, CallStatus, Checkpoint, Phase, Session, ToolCall


def call_to_try_again(session: Session) -> ToolCall | None:
    """The failed call that a Resume of the session lets be tried again; None if no call ended its turn.

    At most three queries, and none for a session that has not failed.
    """
    key = _failure(session).get("call")
    if key is None:
        return None
    calls = ToolCall.objects.filter(branch=session.current_branch)
    with_approval = calls.select_related("approval")
    failed = with_approval.filter(pk=key, status=CallStatus.FAILED).first() if isinstance(key, int) else None
    if failed is None or calls.filter(call_id=failed.call_id, position__gt=failed.position).exists():
        return None
    return failed


def step_to_begin_again(session: Session) -> Checkpoint | None:
    """The start of the step whose reply ended the turn, where no call had started; None if that is not so."""
    if not _failure(session).get("asks_again"):
        return None
    prepared = Q(kind=Checkpoint.Kind.PREPARED)
    start = restore.last_visible(Checkpoint, session.current_branch, without=prepared)
    return start if start is not None and start.kind in STEP_KINDS else None


def _failure(session: Session) -> Mapping[str, Any]:
    """What is on record of the failure that ended the turn; empty for a session that has not failed."""
    if session.phase != Phase.ERROR:
        return {}
    return newest_failure(session)


def plan_new_attempt(session: Session, now: datetime) -> ToolCall | None:
    """Add the call to the locked session, which the caller saves; None if there is none to try again."""
    failed = call_to_try_again(session)
    if failed is None:
        return None
    session.position += 1
    attempt = ToolCall.objects.create(
        branch=failed.branch,
        position=session.position,
        call_id=failed.call_id,
        tool=failed.tool,
        arguments=failed.arguments,
        idempotency_key=failed.idempotency_key,
        asked_at=now,
    )
    _carry_approval(session, failed, attempt)
    return attempt


def _carry_approval(session: Session, failed: ToolCall, attempt: ToolCall) -> None:
    """Let the attempt run with the arguments that a person set for the failed call; nothing if nobody did.

    The row says who set them. It has no fingerprint, since nobody was asked about the attempt.
    """
    approval = getattr(failed, "approval", None)
    if approval is None or approval.decision != Approval.Decision.APPROVED or approval.edited is None:
        return
    Approval.objects.create(
        session=session,
        call=attempt,
        arguments=approval.arguments,
        edited=approval.edited,
        fingerprint="",
        asked_at=approval.asked_at,
        decision=approval.decision,
        decided_at=approval.decided_at,
        decided_by=approval.decided_by,
    )
