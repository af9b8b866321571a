"""A session as plain JSON: its facts, and a page of its history as it is stored."""

from datetime import datetime
from typing import Any

from sessions_app.desk.pages.session import timeline
from sessions_app.desk.pages.session.context import SessionContext
from sessions_app.desk.pages.session.timeline_items import EndItem, EventItem, Item, MessageItem, StepItem

FACTS = (
    "agent", "title", "customer", "phase", "phase_since", "status", "waiting_for", "why", "error", "final_answer",
    "exit_reason", "epoch", "worker", "attempt", "position", "version", "definition", "totals", "inputs",
    "created_at", "updated_at",
)  # fmt: skip


def session_json(context: SessionContext, *, before: int | None = None) -> dict[str, Any]:
    """Plain values only, of the session as it was read. ``history`` is one page, oldest first.

    ``earlier`` is the ``before`` of the page before it.
    """
    session, branch = context.session, context.branch
    page = timeline.read_page(context, before=before)
    return {
        "id": str(session.pk),
        **{name: _plain(getattr(session, name)) for name in FACTS},
        "tags": sorted(tag.name for tag in session.tags.all()),
        "branch": {"number": branch.number, "left_at": branch.left_at, "lineage": branch.lineage},
        "history": [told for item in page.items if (told := _item(item))],
        "earlier": page.earlier,
    }


def _item(item: Item) -> dict[str, Any] | None:
    match item:
        case StepItem():
            return {
                "step": item.number,
                "position": item.position,
                "checkpoint": item.checkpoint.pk,
                "phases": item.phases,
                "at": item.at.isoformat(),
                "texts": [reply.text for reply in item.texts],
                "model_calls": [
                    {
                        "position": call.position,
                        "name": call.name,
                        "model": call.model,
                        "prompt_tokens": call.prompt_tokens,
                        "completion_tokens": call.completion_tokens,
                        "seconds": call.seconds,
                        "error": call.error,
                    }
                    for call in item.model_calls
                ],
                "tool_calls": [
                    {
                        "position": call.row.position,
                        "call_id": call.row.call_id,
                        "tool": call.row.tool,
                        "arguments": call.row.arguments,
                        "sent": call.row.sent,
                        "status": call.row.status,
                        "result": getattr(call.row, "small", None),
                        "result_size": call.size,
                        "error": call.row.error,
                        "attempt": call.row.attempt,
                        "cached": call.row.cached,
                        "idempotency_key": call.row.idempotency_key,
                    }
                    for call in item.calls
                ],
            }
        case MessageItem():
            return {
                "message": item.row.role,
                "position": item.position,
                "at": item.at.isoformat(),
                "text": item.row.text,
                "author": item.row.author,
            }
        case EventItem():
            return {
                "event": item.row.kind,
                "position": item.position,
                "at": item.at.isoformat(),
                "actor": item.row.actor_name,
                "reason": item.row.reason,
                "data": item.row.data,
            }
        case EndItem():
            return {
                "end_of_turn": item.row.outcome,
                "position": item.position,
                "checkpoint": item.row.pk,
                "at": item.at.isoformat(),
            }
    return None


def _plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value
