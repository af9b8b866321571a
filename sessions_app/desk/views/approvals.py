"""The page of open approvals, and deciding several of them at once."""

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect
from django.views.decorators.http import require_GET, require_POST

from sessions_app.action_list import APPROVE
from sessions_app.desk.context import Request, number, page_context, render_page, staff_page, wants_part
from sessions_app.desk.forms.batch import BatchForm
from sessions_app.desk.pages import approvals
from sessions_app.desk.pages.context import PageContext


@staff_page
@require_GET
def approvals_page(request: Request) -> HttpResponse:
    """The open approvals. With ``seen`` (the mark of what the page shows) it answers 204 while nothing has changed."""
    return _render(request, page_context(request), request.GET.get("tool", ""), number(request, "after"))


@staff_page
@require_POST
def decide_batch(request: Request) -> HttpResponse:
    """Approve or reject the calls that are ticked, all of one tool, and show the outcome of each."""
    context = page_context(request)
    form = BatchForm(request.POST)
    # No tool has a NUL character in its name, and PostgreSQL takes none.
    tool = request.POST.get("tool", "").replace("\x00", "")
    if context.why_not.of(APPROVE):
        return _render(request, context, tool, None, form=form, status=403)
    if not form.is_valid():
        return _render(request, context, tool, None, form=form, status=400)
    outcomes = form.run(context)
    if all(outcome.done for outcome in outcomes):
        messages.success(request, f"{form.done}: {len(outcomes)} call{'s' if len(outcomes) > 1 else ''}.")
        return redirect("approvals")
    values = {"outcomes": outcomes, "done": form.done, "tool": tool}
    return render_page(request, "desk/batch_outcome.html", values, status=409)


def _render(
    request: Request,
    context: PageContext,
    tool: str,
    after: int | None,
    *,
    form: BatchForm | None = None,
    status: int = 200,
) -> HttpResponse:
    mark = approvals.mark(context.now, after=after, tool=tool)
    if request.GET.get("seen") == mark:
        return HttpResponse(status=204)
    page = approvals.read_page(context, after=after, tool=tool)
    values = {
        "page": page,
        "tool": tool,
        "after": after,
        "mark": mark,
        "why_not": context.why_not,
        "now": context.now,
        "batch": form,
        # A refused form is shown again, with what was typed, also when its calls have been decided meanwhile.
        "offers_batch": not context.why_not.of(APPROVE) and (form is not None or bool(tool and page.cards)),
    }
    template = "desk/approvals.html#cards" if wants_part(request) else "desk/approvals.html"
    return render_page(request, template, values, status=status)
