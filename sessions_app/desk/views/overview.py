"""The rooms beside the sessions: approvals, agents, workers, and the comparison of two checkpoints."""

from datetime import datetime
from uuid import UUID

from django.contrib import messages
from django.http import Http404, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_GET, require_POST

from sessions_app.access.masking import Mask
from sessions_app.access.roles import Actor
from sessions_app.desk.context import Request, desk, find, number, page, wants_part
from sessions_app.desk.forms.batch import BatchForm
from sessions_app.desk.pages import agents as agent_queries
from sessions_app.desk.pages import approvals as approval_queries
from sessions_app.desk.pages import compare as compare_queries
from sessions_app.desk.pages import workers as worker_queries
from sessions_app.desk.pages.session import diagram
from sessions_app.history.restore import last_visible
from sessions_app.models import Checkpoint, RegisteredAgent


@desk
@require_GET
def approvals(request: Request) -> HttpResponse:
    """The approvals inbox. With ``seen`` (how many were open, and the newest) it answers 204 while nothing changed."""
    return _inbox(request, timezone.now(), request.GET.get("tool", ""), number(request.GET.get("after")))


@desk
@require_POST
def decide_batch(request: Request) -> HttpResponse:
    """Approve or reject the calls that are ticked, all of one tool; what became of each is told."""
    form = BatchForm(request.POST)
    tool = request.POST.get("tool", "")
    if not Actor.of(request.user).may("approve"):
        return _inbox(request, timezone.now(), tool, None, form=form, status=403)
    if not form.is_valid():
        return _inbox(request, timezone.now(), tool, None, form=form, status=400)
    outcomes = form.run(Actor.of(request.user))
    if all(outcome.done for outcome in outcomes):
        messages.success(request, f"{form.done}: {len(outcomes)} call{'s' if len(outcomes) > 1 else ''}.")
        return redirect("approvals")
    return page(
        request,
        "desk/batch_outcome.html",
        {"outcomes": outcomes, "done": form.done, "tool": tool},
        status=409,
    )


def _inbox(
    request: Request,
    now: datetime,
    tool: str,
    after: int | None,
    *,
    form: BatchForm | None = None,
    status: int = 200,
) -> HttpResponse:
    newest = approval_queries.waiting(now).order_by("-pk").values_list("pk", flat=True).first()
    mark = f"{approval_queries.number(now)}-{newest or 0}"
    if request.GET.get("seen") == mark:
        return HttpResponse(status=204)
    context = {
        "page": approval_queries.page(now, after=after, tool=tool),
        "tool": tool,
        "after": after,
        "mark": mark,
        "may_approve": "" if Actor.of(request.user).may("approve") else "Your role does not allow this.",
        "now": now,
        "batch": form,
    }
    template = "desk/approvals.html#cards" if wants_part(request) else "desk/approvals.html"
    return page(request, template, context, status=status)


@desk
@require_GET
def agents(request: Request) -> HttpResponse:
    return page(request, "desk/agents.html", {"agents": agent_queries.agents()})


@desk
@require_GET
def agent(request: Request, key: str) -> HttpResponse:
    """One agent: its tools with policies and schemas, and the phases of all its sessions added up."""
    found = get_object_or_404(RegisteredAgent, key=key)
    summed = agent_queries.totals(found)
    context = {
        "agent": found,
        "summed": summed,
        "diagram": diagram.picture(summed.totals, said="All sessions together"),
    }
    return page(request, "desk/agent.html", context)


@desk
@require_GET
def workers(request: Request) -> HttpResponse:
    context = {"workers": worker_queries.workers(timezone.now())}
    return page(request, "desk/workers.html#list" if wants_part(request) else "desk/workers.html", context)


@desk
@require_GET
def compare_source(request: Request, session_id: UUID) -> HttpResponse:
    """To the comparison of a fork, as it is now, with the session that it was forked from, as that one is now."""
    session, branch = find(session_id)
    if session.forked_from is None:
        raise Http404("This session is no fork.")
    _, source = find(session.forked_from.branch.session_id)
    ends = [last_visible(Checkpoint, one) for one in (source, branch)]
    a, b = (end or session.forked_from for end in ends)
    return redirect(f"{reverse('compare')}?a={a.pk}&b={b.pk}")


@desk
@require_GET
def compare(request: Request) -> HttpResponse:
    """Two checkpoints beside each other, of one session or of two."""
    asked = [number(request.GET.get(name)) for name in ("a", "b")]
    found = Checkpoint.objects.select_related("branch__session").in_bulk(
        [pk for pk in asked if pk is not None]
    )
    if any(pk not in found for pk in asked):
        raise Http404("There is no such checkpoint.")
    left, right = (found[pk] for pk in asked if pk is not None)
    mask = Mask.for_user(request.user)
    mask.rows([left.branch.session, right.branch.session])
    return page(
        request,
        "desk/compare.html",
        {"comparison": compare_queries.compare(left, right, mask)},
    )
