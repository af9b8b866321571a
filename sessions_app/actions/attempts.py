"""A new attempt of the tool call whose failure ended a turn. Only a person's Resume starts one.

A call that has ended never changes and never runs again by itself: the attempt is a call of its own, of the same model
reply and with the same idempotency key. Unless its tool is idempotent, the run asks for its approval first.
"""

from datetime import datetime

from sessions_app.models import CallStatus, Event, EventKind, Phase, Session, ToolCall


def call_to_try_again(session: Session) -> ToolCall | None:
    """The failed call that a Resume of the session lets be tried again; None if no call ended its turn.

    At most three queries, and none for a session that has not failed.
    """
    if session.phase != Phase.ERROR:
        return None
    failure = Event.objects.filter(session=session, kind=EventKind.FAILED).order_by("-position").first()
    key = failure.data.get("call") if failure is not None else None
    calls = ToolCall.objects.filter(branch=session.current_branch)
    failed = calls.filter(pk=key, status=CallStatus.FAILED).first() if isinstance(key, int) else None
    if failed is None or calls.filter(call_id=failed.call_id, position__gt=failed.position).exists():
        return None
    return failed


def plan_new_attempt(session: Session, now: datetime) -> ToolCall | None:
    """Add the call to the locked session, which the caller saves; None if there is none to try again."""
    failed = call_to_try_again(session)
    if failed is None:
        return None
    session.position += 1
    return ToolCall.objects.create(
        branch=failed.branch,
        position=session.position,
        call_id=failed.call_id,
        tool=failed.tool,
        arguments=failed.arguments,
        idempotency_key=failed.idempotency_key,
        asked_at=now,
    )
