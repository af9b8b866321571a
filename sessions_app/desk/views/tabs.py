"""The other tabs of a session: conversation, state, checkpoints, audit, JSON; and a single call's page."""

import json
from uuid import UUID

from django.http import Http404, HttpResponse, JsonResponse
from django.utils import timezone
from django.views.decorators.http import require_GET, require_http_methods

from sessions_app.access.availability import shows
from sessions_app.access.masking import Mask
from sessions_app.desk.context import Request, desk, find, mask_of, number, page
from sessions_app.desk.pages import values
from sessions_app.desk.pages.session import audit, checkpoints, conversation, json_page, repairs, state
from sessions_app.desk.pages.session.calls import CallItem
from sessions_app.desk.views.session import top_of
from sessions_app.models import ToolCall


@desk
@require_http_methods(["GET", "POST"])
def conversation_tab(request: Request, session_id: UUID) -> HttpResponse:
    mask = mask_of(request, session_id, "the conversation")
    session, branch = find(session_id, mask)
    found = conversation.page(branch, before=number(request.GET.get("before")), mask=mask)
    context = {
        "tab": "conversation",
        "page": found,
        "inbox": mask.rows(session.inbox.select_related("author")),
        "repair_from": repairs.place(branch),
    }
    top = top_of(request, session, branch, timezone.now(), mask)
    return page(request, "session/conversation.html", top | context)


@desk
@require_http_methods(["GET", "POST"])
def state_tab(request: Request, session_id: UUID) -> HttpResponse:
    """The state now, or with ``checkpoint`` as it was there."""
    mask = mask_of(request, session_id, "the state")
    session, branch = find(session_id, mask)
    checkpoint, branch_there = None, branch
    if request.GET.get("checkpoint"):
        checkpoint = checkpoints.find(session, branch, number(request.GET["checkpoint"]) or 0)
        if checkpoint is None:
            raise Http404("This session has no such checkpoint.")
        branch_there = branch if shows(branch, checkpoint) else checkpoint.branch
    context = {
        "tab": "state",
        "state": state.state(branch_there, checkpoint, mask=mask),
        "chosen": checkpoint,
    }
    return page(
        request, "session/state.html", top_of(request, session, branch, timezone.now(), mask) | context
    )


@desk
@require_GET
def checkpoints_tab(request: Request, session_id: UUID) -> HttpResponse:
    mask = Mask.configured()
    session, branch = find(session_id, mask)
    context = {
        "tab": "checkpoints",
        "page": checkpoints.page(branch, before=number(request.GET.get("before"))),
    }
    return page(
        request, "session/checkpoints.html", top_of(request, session, branch, timezone.now(), mask) | context
    )


@desk
@require_http_methods(["GET", "POST"])
def audit_tab(request: Request, session_id: UUID) -> HttpResponse:
    mask = mask_of(request, session_id, "the audit trail")
    session, branch = find(session_id, mask)
    found = audit.page(session, before=number(request.GET.get("before")), mask=mask)
    top = top_of(request, session, branch, timezone.now(), mask)
    return page(request, "session/audit.html", top | {"tab": "audit", "page": found})


@desk
@require_http_methods(["GET", "POST"])
def json_tab(request: Request, session_id: UUID) -> HttpResponse:
    """The session as JSON: to read, or with ``raw`` as a file for a program."""
    mask = mask_of(request, session_id, "the JSON")
    session, branch = find(session_id, mask)
    data = json_page.session_json(session, branch, before=number(request.GET.get("before")), mask=mask)
    if "raw" in request.GET:
        return JsonResponse(data)
    context = {
        "tab": "json",
        "text": json.dumps(data, indent=2, ensure_ascii=False),
        "earlier": data["earlier"],
    }
    return page(
        request, "session/json.html", top_of(request, session, branch, timezone.now(), mask) | context
    )


@desk
@require_http_methods(["GET", "POST"])
def call(request: Request, session_id: UUID, call_id: int) -> HttpResponse:
    """One call in full, however big its result. It may lie on any branch that the session shows or has left."""
    session, branch = find(session_id, Mask.configured())
    row = ToolCall.objects.select_related("approval", "branch").filter(pk=call_id).first()
    if row is None or not (row.branch.session_id == session.pk or shows(branch, row)):
        raise Http404("This session has no such call.")
    mask = mask_of(request, session_id, f"call {row.position} of {row.tool}")
    row = mask.row(row)
    item = CallItem(
        row,
        getattr(row, "approval", None),
        values.show(row.result) if row.result is not None else None,
        0,
        "",
    )
    if "raw" in request.GET:
        return JsonResponse(
            {"arguments": row.arguments, "sent": row.sent, "result": row.result, "error": row.error}
        )
    context = {
        "call": item,
        "arguments": values.show(row.arguments),
        "sent": values.show(row.sent) if row.sent else None,
    }
    return page(
        request, "session/call.html", top_of(request, session, branch, timezone.now(), mask) | context
    )
