"""The page of open approvals, and deciding several of them at once."""

from datetime import datetime

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect
from django.utils import timezone
from django.views.decorators.http import require_GET, require_POST

from sessions_app.access.masking import Mask
from sessions_app.access.roles import Actor
from sessions_app.action_list import APPROVE
from sessions_app.desk.context import Request, desk, number, render_page, wants_part
from sessions_app.desk.forms.batch import BatchForm
from sessions_app.desk.pages import approvals
from sessions_app.desk.pages.why_not import WhyNot


@desk
@require_GET
def approvals_page(request: Request) -> HttpResponse:
    """The open approvals. With ``seen`` (their number, and the newest) it answers 204 while nothing has changed."""
    now = timezone.now()
    return _render(request, now, request.GET.get("tool", ""), number(request, "after"))


@desk
@require_POST
def decide_batch(request: Request) -> HttpResponse:
    """Approve or reject the calls that are ticked, all of one tool, and say what became of each."""
    actor = Actor.of(request.user)
    form = BatchForm(request.POST)
    # No tool has a NUL character in its name, and PostgreSQL takes none.
    tool = request.POST.get("tool", "").replace("\x00", "")
    if WhyNot(actor).of(APPROVE):
        return _render(request, timezone.now(), tool, None, form=form, status=403)
    if not form.is_valid():
        return _render(request, timezone.now(), tool, None, form=form, status=400)
    outcomes = form.run(actor)
    if all(outcome.done for outcome in outcomes):
        messages.success(request, f"{form.done}: {len(outcomes)} call{'s' if len(outcomes) > 1 else ''}.")
        return redirect("approvals")
    values = {"outcomes": outcomes, "done": form.done, "tool": tool}
    return render_page(request, "desk/batch_outcome.html", values, status=409)


def _render(
    request: Request,
    now: datetime,
    tool: str,
    after: int | None,
    *,
    form: BatchForm | None = None,
    status: int = 200,
) -> HttpResponse:
    newest = approvals.open_approvals(now).order_by("-pk").values_list("pk", flat=True).first()
    mark = f"{approvals.count_open(now)}-{newest or 0}"
    if request.GET.get("seen") == mark:
        return HttpResponse(status=204)
    why_not = WhyNot(Actor.of(request.user))
    page = approvals.read_page(now, Mask.configured(), after=after, tool=tool)
    values = {
        "page": page,
        "tool": tool,
        "after": after,
        "mark": mark,
        "why_not": why_not,
        "now": now,
        "batch": form,
        # A refused form is shown again, with what was typed, also when its calls have been decided meanwhile.
        "offers_batch": not why_not.of(APPROVE) and (form is not None or bool(tool and page.cards)),
    }
    template = "desk/approvals.html#cards" if wants_part(request) else "desk/approvals.html"
    return render_page(request, template, values, status=status)
