"""All of a session in plain JSON: what `manage.py agent show` prints."""

from typing import Any

from sessions_app.history.message_rows import fill_texts
from sessions_app.models import Checkpoint, Message, Session, ToolCall


def whole(session: Session) -> dict[str, Any]:
    """The session, and the history that its present branch shows. Five queries, however long it is."""
    branch = session.branch
    assert branch is not None, f"session {session.pk} has no branch"
    messages = fill_texts(branch, list(Message.objects.visible_on(branch)))
    return {
        "id": str(session.pk),
        "agent": session.agent,
        "title": session.title,
        "version": session.version,
        "branch": branch.number,
        "phase": session.phase,
        "status": session.status,
        "waiting_for": session.waiting_for,
        "why": session.why,
        "epoch": session.epoch,
        "final_answer": session.final_answer,
        "error": session.error,
        "messages": [{"position": row.position, "role": row.role, "text": row.text} for row in messages],
        "inbox": list(session.inbox.values_list("text", flat=True)),
        "tool_calls": [_call(row) for row in ToolCall.objects.visible_on(branch)],
        "checkpoints": [_checkpoint(row) for row in Checkpoint.objects.visible_on(branch)],
    }


def _call(row: ToolCall) -> dict[str, Any]:
    return {
        "call_id": row.call_id,
        "position": row.position,
        "tool": row.tool,
        "arguments": row.ran_with,
        "status": row.status,
        "result": row.result,
        "error": row.error,
        "attempts": row.attempt,
        "cached": row.cached,
        "idempotency_key": row.idempotency_key,
    }


def _checkpoint(row: Checkpoint) -> dict[str, Any]:
    return {
        "id": row.pk,
        "position": row.position,
        "phase": row.phase,
        "complete": row.complete,
        "kind": row.kind,
    }
