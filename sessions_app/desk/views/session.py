"""A session's page: the timeline, what it polls, its earlier steps and its discarded tails."""

from dataclasses import replace
from datetime import datetime
from typing import Any
from uuid import UUID

from django.core import signing
from django.http import Http404, HttpRequest, HttpResponse
from django.utils import timezone
from django.views.decorators.http import require_GET, require_http_methods

from sessions_app.access.masking import Mask
from sessions_app.access.roles import Actor
from sessions_app.desk.context import Request, desk, find, mask_of, number, page, queue_of, wants_part
from sessions_app.desk.pages import approvals, earlier_effects
from sessions_app.desk.pages.session import (
    audit,
    diagnosis,
    diagram,
    discarded,
    repairs,
    state,
    time_strip,
    timeline,
    timeline_filter,
)
from sessions_app.desk.pages.session.header import Header, header, why_not
from sessions_app.finding import queues
from sessions_app.history import restore
from sessions_app.models import Branch, Checkpoint, Session, Status

KEY_SECONDS = 24 * 3600
_signer = signing.TimestampSigner(salt="live")


@desk
@require_http_methods(["GET", "POST"])
def session(request: Request, session_id: UUID) -> HttpResponse:
    """The newest steps, or with ``before`` earlier ones, or with ``at`` those around a position."""
    mask = mask_of(request, session_id, "the timeline")
    found, branch = find(session_id, mask)
    now = timezone.now()
    only = timeline_filter.parse(request.GET)
    at = number(request.GET.get("at"))
    before = timeline.around(branch, at) if at is not None else number(request.GET.get("before"))
    shown = timeline.page(found, branch, now=now, before=before, only=only, mask=mask)
    top = top_of(request, found, branch, now, mask)
    context = top | {
        "page": shown,
        "only": only,
        "gaps": request.GET.get("gaps") != "hide",
        "live": sentinel(found, branch, shown) if before is None and only is None else None,
        "strip": time_strip.strip(found, branch, now=now),
        "inbox": mask.rows(found.inbox.select_related("author")),
        "cards": cards(top["header"], found),
        **_beside(found, branch, top["header"], now, mask),
    }
    return page(request, "session/timeline.html", context)


@desk
@require_GET
def earlier(request: Request, session_id: UUID) -> HttpResponse:
    """The page of steps before ``before``, to go in front of those shown; without htmx, a page of its own."""
    if not wants_part(request):
        return session(request, session_id)
    found, branch = find(session_id)
    shown = timeline.page(
        found,
        branch,
        now=timezone.now(),
        before=number(request.GET.get("before")),
        only=timeline_filter.parse(request.GET),
    )
    context = {
        "session": found,
        "page": shown,
        "only": timeline_filter.parse(request.GET),
        "gaps": True,
        "queue": queue_of(request),
        "may_repair": why_not(found, Actor.of(request.user), "memory"),
        "repair_from": repairs.place(branch),
        "cards": {},  # what is asked for stands at the newest step
    }
    return page(request, "session/timeline.html#earlier", context)


@desk
@require_GET
def tail(request: Request, session_id: UUID, branch_number: int) -> HttpResponse:
    """The steps that a rewind left behind on a branch, dimmed: in place with htmx, else as a page."""
    found, branch = find(session_id)
    now = timezone.now()
    left = next((one for one in discarded.left_behind(found, branch) if one.branch == branch_number), None)
    if left is None:
        raise Http404("No steps were left behind on that branch.")
    other = Branch.objects.get(session=found, number=branch_number)
    context = {
        "session": found,
        "tail": left,
        "items": timeline.tail(other, left.left_at, now=now),
        "gone": True,
    }
    if wants_part(request):
        return page(request, "session/tail.html#tail", context | {"queue": queue_of(request)})
    return page(request, "session/tail.html", top_of(request, found, branch, now) | context)


def live(request: HttpRequest, session_id: UUID) -> HttpResponse:
    """What a live page polls: 204 while the session is as it was, and that costs one small query.

    The signed key says that the page was drawn for somebody who may see it; only that nothing changed is told by it.
    """
    after = number(request.GET.get("after"))
    if _key_holds(request.GET.get("key", ""), session_id):
        change = Session.objects.filter(pk=session_id).values_list("change", flat=True).first()
        if change is not None and change == after:
            return HttpResponse(status=204)
    return _news(request, session_id)


@desk
@require_GET
def _news(request: Request, session_id: UUID) -> HttpResponse:
    """The parts of the page that have changed: new items to append, and the rest out of band."""
    found, branch = find(session_id)
    now = timezone.now()
    first, shown = number(request.GET.get("from")) or 0, number(request.GET.get("shown")) or 0
    top = top_of(request, found, branch, now)
    moved = request.GET.get("branch") != str(branch.number)
    fresh = timeline.page(found, branch, now=now) if moved else timeline.since(found, branch, first, now=now)
    context = top | {
        "page": fresh,
        "moved": moved,
        "old": [] if moved else [item for item in fresh.items if item.position <= shown],
        "new": fresh.items if moved else [item for item in fresh.items if item.position > shown],
        "gaps": True,
        "live": sentinel(found, branch, fresh, shown),
        "strip": time_strip.strip(found, branch, now=now),
        "inbox": top["mask"].rows(found.inbox.select_related("author")),
        "cards": cards(top["header"], found),
        **_beside(found, branch, top["header"], now, top["mask"]),
    }
    response = page(request, "session/live.html", context)
    if moved:
        response["HX-Retarget"], response["HX-Reswap"] = "#timeline", "outerHTML"
    return response


def _beside(session: Session, branch: Branch, top: Header, now: datetime, mask: Mask) -> dict[str, Any]:
    """What the side column shows, and from where on the newest step goes."""
    last = restore.last_visible(Checkpoint, branch)
    return {
        "last_audit": audit.page(session, limit=8, mask=mask).events,
        "memory": state.memory(branch, last, mask) if last else None,
        "allowances": list(session.allowances.order_by("tool")),
        "repair_from": last.position if last else 0,
        "hints": [
            replace(hint, text=mask.text(hint.text)) for hint in diagnosis.diagnose(session, now, header=top)
        ],
    }


def sentinel(
    session: Session, branch: Branch, shown: timeline.Page, before: int = 0
) -> dict[str, Any] | None:
    """What the last item of a live list polls, and how often; None for a session in which nothing happens by itself."""
    seconds = {Status.RUNNING: 1, Status.QUEUED: 1, Status.WAITING: 10, Status.PAUSED: 10}.get(
        Status(session.status)
    )
    if seconds is None:
        return None
    return {
        "seconds": seconds,
        "after": session.change,
        "branch": branch.number,
        "from": shown.last_step,
        "shown": max([item.position for item in shown.items], default=before),
        "key": _signer.sign(str(session.pk)),
    }


def top_of(
    request: Request, session: Session, branch: Branch, now: datetime, mask: Mask | None = None
) -> dict[str, Any]:
    """What every page of a session shows above its tab."""
    mask = mask or Mask.for_user(request.user)
    actor = Actor.of(request.user)
    queue = queue_of(request)
    return {
        "session": session,
        "branch": branch,
        "now": now,
        "mask": mask,
        "header": header(session, actor, now, mask),
        "diagram": diagram.draw(session, now),
        "queue": queue,
        "queue_title": queues.BY_KEY[queue].title if queue else "",
        "neighbours": queues.neighbours(session, queue, now=now) if queue else None,
        "message_why_not": why_not(session, actor, "message"),
        "may_approve": why_not(session, actor, "approve"),
        "may_decide": why_not(session, actor, "decide"),
        "may_release": why_not(session, actor, "release"),
        "may_repair": why_not(session, actor, "memory"),
    }


def cards(top: Header, session: Session) -> dict[int, approvals.Card]:
    """The open approvals of the session by their call's position, with their forms."""
    requests = []
    for call in top.open_calls:
        approval = getattr(call, "approval", None)
        if approval is not None and not approval.decision:
            approval.call, approval.session = call, session
            requests.append(approval)
    earlier = earlier_effects.of_requests(requests, Mask.configured())
    return {
        approval.call.position: approvals.card(approval, top.agent, earlier=earlier[approval.pk])
        for approval in requests
    }


def _key_holds(key: str, session_id: UUID) -> bool:
    try:
        return _signer.unsign(key, max_age=KEY_SECONDS) == str(session_id)
    except signing.BadSignature:
        return False
