"""The other tabs of a session: conversation, state, checkpoints, audit, JSON, search; and the page of a single call."""

import functools
from uuid import UUID

from django.http import Http404, HttpResponse, JsonResponse
from django.shortcuts import redirect
from django.views.decorators.http import require_GET, require_POST

from agentstate.durable.long_term import MOST_ENTRIES
from agentstate.durable.state.tags import stand_ins
from sessions_app import actions
from sessions_app.access.availability import shows
from sessions_app.access.errors import Forbidden
from sessions_app.desk.context import (
    Request,
    number,
    render_page,
    session_context,
    staff_page,
    wants_part,
    without_empty_fields,
)
from sessions_app.desk.pages import agents, found, replacements, values
from sessions_app.desk.pages.definition_changes import changes_of
from sessions_app.desk.pages.session import (
    audit,
    checkpoints,
    conversation,
    discarded,
    json_page,
    memory_entries,
    model_call,
    repairs,
    revealed,
    similar,
    state,
)
from sessions_app.desk.pages.session.calls import CallItem
from sessions_app.desk.pages.session.partial_reply import partial_reply
from sessions_app.desk.pages.session.places import page_of
from sessions_app.desk.views.live import only_the_reply, poll, unless_unchanged
from sessions_app.desk.views.session import session_frame, session_values, unread
from sessions_app.finding import hits
from sessions_app.finding.hidden import may_know_hidden
from sessions_app.history.export import call_json
from sessions_app.models import StaffPermission, ToolCall
from sessions_app.wording import pretty

MOST_HITS = 50


@unless_unchanged
@staff_page
@require_GET
def conversation_tab(request: Request, session_id: UUID) -> HttpResponse:
    """What was said; the newest page of it is live."""
    context = session_context(request, session_id)
    before = number(request, "before")
    partial = partial_reply(context)
    if answer := only_the_reply(request, context, partial):
        return answer
    is_part = wants_part(request)
    return render_page(
        request,
        "session/conversation.html#talk" if is_part else "session/conversation.html",
        (session_values(request, context) if is_part else session_frame(request, context))
        | {
            "tab": "conversation",
            "page": conversation.read_page(context, before=before),
            "live": poll(request, context) if before is None else None,
            "polled": is_part,
            "partial": partial,
            "inbox": unread(context),
            "repair_from": repairs.newest_checkpoint_position(context.branch),
        },
    )


@functools.partial(unless_unchanged, shows_reply=False)
@staff_page
@require_GET
def top(request: Request, session_id: UUID) -> HttpResponse:
    """The top of a tab that stays as it was loaded, and whether the session has changed ``since``.

    What a person reads does not change under their eyes: they are told, and load the tab again.
    """
    context = session_context(request, session_id)
    since = number(request, "since")
    values = {
        "live": poll(request, context),
        "since": since,
        "is_newer": since is not None and since != context.session.change,
    }
    return render_page(request, "session/newer.html", session_values(request, context) | values)


@staff_page
@require_GET
def state_tab(request: Request, session_id: UUID) -> HttpResponse:
    """The state now, or with ``checkpoint`` as it was there."""
    context = session_context(request, session_id)
    checkpoint = None
    if request.GET.get("checkpoint"):
        checkpoint = checkpoints.find(context, number(request, "checkpoint") or 0)
        if checkpoint is None:
            raise Http404("This session has no such checkpoint.")
    return render_page(
        request,
        "session/state.html",
        session_frame(request, context)
        | {
            "tab": "state",
            "state": state.read_state(context, checkpoint),
            "chosen": checkpoint is not None,
        },
    )


@staff_page
@require_GET
def memories_tab(request: Request, session_id: UUID) -> HttpResponse:
    """What the agent remembers about the customer, from all sessions; with ``q``, what contains all of its words."""
    if short := without_empty_fields(request):
        return redirect(short)
    context = session_context(request, session_id)
    sought = request.GET.get("q", "").strip()[:200]
    page = memory_entries.read_page(
        context,
        before=number(request, "before"),
        sought=sought,
        whole=may_know_hidden(request.user),
    )
    values = {
        "tab": "memories",
        "page": page,
        "sought": sought,
        "most_searched": MOST_ENTRIES,
        "similar": similar.similar_sessions(context),
    }
    return render_page(request, "session/memories.html", session_frame(request, context) | values)


@staff_page
@require_GET
def checkpoints_tab(request: Request, session_id: UUID) -> HttpResponse:
    """The checkpoints of the current history, and beside its newest page those of the discarded branches."""
    context = session_context(request, session_id)
    before = number(request, "before")
    branches = discarded.discarded_branches(context)
    page = checkpoints.read_page(context, before=before)
    of_branches = checkpoints.read_discarded(context) if branches and before is None else []
    values = {
        "tab": "checkpoints",
        "page": page,
        "discarded": branches,
        "discarded_checkpoints": of_branches,
        "compares": len(page.checkpoints) + len(of_branches) > 1,
    }
    return render_page(request, "session/checkpoints.html", session_frame(request, context) | values)


@staff_page
@require_GET
def audit_tab(request: Request, session_id: UUID) -> HttpResponse:
    context = session_context(request, session_id)
    oldest_first = request.GET.get("order") == "oldest"
    beyond = number(request, "after" if oldest_first else "before")
    page = audit.read_page(context, beyond=beyond, oldest_first=oldest_first)
    values = {"tab": "audit", "page": page, "oldest_first": oldest_first, "beyond": beyond}
    return render_page(request, "session/audit.html", session_frame(request, context) | values)


@staff_page
@require_GET
def json_tab(request: Request, session_id: UUID) -> HttpResponse:
    """The session as JSON: to read, or with ``raw`` as a file for a program."""
    context = session_context(request, session_id)
    data = json_page.read_page(context, before=number(request, "before"))
    if "raw" in request.GET:
        return JsonResponse(data)
    return render_page(
        request,
        "session/json.html",
        session_frame(request, context)
        | {
            "tab": "json",
            "text": pretty(data),
            "earlier": data["earlier"],
        },
    )


@staff_page
@require_GET
def find_tab(request: Request, session_id: UUID) -> HttpResponse:
    """The messages and calls that contain the text ``q``, newest first."""
    if short := without_empty_fields(request):
        return redirect(short)
    context = session_context(request, session_id)
    text = request.GET.get("q", "").strip()[:200]
    whole = may_know_hidden(request.user)
    hits_found = hits.in_session(context.session, text, mask=context.mask, whole=whole, limit=MOST_HITS)
    return render_page(
        request,
        "session/find.html",
        session_frame(request, context)
        | {
            "tab": "find",
            "sought": text,
            "hits": found.lines(hits_found, session_id, context.queue, context.now),
            "cut": len(hits_found) == MOST_HITS,
        },
    )


@staff_page
@require_GET
def call_page(request: Request, session_id: UUID, call_id: int) -> HttpResponse:
    """One call in full, however big its result, on a branch that the session shows or has discarded."""
    context = session_context(request, session_id)
    row = ToolCall.objects.select_related("approval", "branch").filter(pk=call_id).first()
    if row is None or not (row.branch.session_id == session_id or shows(context.branch, row)):
        raise Http404("This session has no such call.")
    if "raw" in request.GET:
        return JsonResponse(call_json(row, mask=context.mask))
    item = CallItem.whole(row, context.mask, context.session.registered_agent)
    item.replaced = replacements.on(context.branch, context.mask).by_call.get(row.position)
    return render_page(
        request,
        "session/call.html",
        session_frame(request, context)
        | {
            "call": item,
            "place": page_of(context, row.branch, row.position),
            "arguments": values.readable_arguments(item.ran),
            "state_types": stand_ins(item.row.state),
            "has_changed_text": row.lossy
            and item.shown is not None
            and agents.has_changed_text(context.session.agent, row.tool, item.shown.text),
            "requested": values.readable_arguments(item.row.arguments) if item.edited else None,
        },
    )


@staff_page
@require_GET
def model_call_page(request: Request, session_id: UUID, model_call_id: int) -> HttpResponse:
    """One model call, on a branch that the session shows or has discarded."""
    context = session_context(request, session_id)
    page = model_call.read_page(context, model_call_id)
    if page is None:
        raise Http404("This session has no such model call.")
    return render_page(request, "session/model_call.html", session_frame(request, context) | {"page": page})


@staff_page
@require_GET
def definition_changes_page(request: Request, session_id: UUID) -> HttpResponse:
    """What changed in the agent since the session last ran."""
    context = session_context(request, session_id)
    return render_page(
        request,
        "session/definition_changes.html",
        session_frame(request, context) | {"changes": changes_of(context)},
    )


@staff_page
@require_POST
def reveal(request: Request, session_id: UUID) -> HttpResponse:
    """One value as it is stored. ``value`` says which, as kind and key: see `revealed.find`.

    The audit trail names it before the page is drawn.
    """
    context = session_context(request, session_id)
    if lacking := context.actor.lacks(StaffPermission.REVEAL):
        raise Forbidden(lacking)
    kind, _, key = request.POST.get("value", "").partition(":")
    revealed_value = revealed.find(context, kind, key)
    if revealed_value is None:
        raise Http404("This session has no such value.")
    actions.reveal(actor=context.actor, session_id=session_id, what=revealed_value.what)
    return render_page(
        request, "session/revealed.html", session_frame(request, context) | {"revealed": revealed_value}
    )
