"""The comparison of two checkpoints."""

from uuid import UUID

from django.http import Http404, HttpResponse
from django.shortcuts import redirect
from django.views.decorators.http import require_GET

from sessions_app.access.availability import shows
from sessions_app.access.roles import Actor
from sessions_app.action_list import UNDO
from sessions_app.addresses import address
from sessions_app.desk.context import Request, number, page_context, render_page, session_context, staff_page
from sessions_app.desk.pages import compare
from sessions_app.finding.hidden import may_know_hidden
from sessions_app.history.restore import last_visible
from sessions_app.models import Branch, Checkpoint


@staff_page
@require_GET
def compare_page(request: Request) -> HttpResponse:
    """Two checkpoints beside each other, of one session or of two."""
    keys = [number(request, name) for name in ("a", "b")]
    checkpoints = Checkpoint.objects.select_related("branch__session__branch").in_bulk(
        [key for key in keys if key is not None]
    )
    if any(key not in checkpoints for key in keys):
        raise Http404("There is no such checkpoint.")
    left, right = (checkpoints[key] for key in keys if key is not None)
    context = page_context(request)
    comparison = compare.compare(left, right, context.mask, whole=may_know_hidden(request.user))
    only_differences = request.GET.get("show") == "differences"
    values = {
        "comparison": comparison.differences() if only_differences else comparison,
        "most": compare.MOST,
        "only_differences": only_differences,
        "offers_undo": _offers_undo(left, right, context.actor),
    }
    return render_page(request, "desk/compare.html", values)


def _offers_undo(left: Checkpoint, right: Checkpoint, actor: Actor) -> bool:
    """Whether they show what the last rewind or repair of one session discarded, and this person can undo that."""
    session = right.branch.session
    if left.branch.session_id != session.pk or UNDO.why_not(session, actor):
        return False
    return not all(shows(session.current_branch, checkpoint) for checkpoint in (left, right))


@staff_page
@require_GET
def compare_with_branch(request: Request, session_id: UUID, branch_number: int) -> HttpResponse:
    """Redirects to the comparison of another branch of the session, as it was left, with the session as it is now."""
    context = session_context(request, session_id)
    other = Branch.objects.filter(session=context.session, number=branch_number).first()
    ends = [last_visible(Checkpoint, branch) for branch in (other, context.branch) if branch is not None]
    a, b = ends if len(ends) == 2 else (None, None)
    if a is None or b is None:
        raise Http404("That history has nothing to compare with.")
    return redirect(address("compare", a=a.pk, b=b.pk))


@staff_page
@require_GET
def compare_with_source(request: Request, session_id: UUID) -> HttpResponse:
    """Redirects to the comparison of a fork with the session that it was forked from, both as they are now."""
    context = session_context(request, session_id)
    origin = context.session.forked_from
    if origin is None:
        raise Http404("This session is not a fork.")
    source = session_context(request, origin.branch.session_id)
    ends = [last_visible(Checkpoint, branch) for branch in (source.branch, context.branch)]
    a, b = (end or origin for end in ends)
    return redirect(address("compare", a=a.pk, b=b.pk))
