"""One act on many sessions: what it would do, how far it is, what it could not do."""

from typing import Any

from django.contrib import messages
from django.http import HttpResponse, QueryDict
from django.shortcuts import get_object_or_404, redirect
from django.utils import timezone
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from sessions_app import actions
from sessions_app.access.errors import ActionError
from sessions_app.access.masking import Mask
from sessions_app.access.roles import Actor
from sessions_app.desk.context import Request, desk, number, queue_of, render_page, wants_part
from sessions_app.desk.forms.lists import BulkForm
from sessions_app.desk.pages import bulk
from sessions_app.desk.pages.why_not import NOT_ALLOWED, WhyNot
from sessions_app.finding import queues
from sessions_app.finding.filters import SessionFilter
from sessions_app.models import BulkAct


@desk
@require_http_methods(["GET", "POST"])
def begin(request: Request) -> HttpResponse:
    """What an act would do with the sessions that the query string chooses; POST does it to just those."""
    actor = Actor.of(request.user)
    kind = request.GET.get("kind", "")
    kind = kind if kind in BulkAct.Kind.values else BulkAct.Kind.PAUSE.value
    sieve = SessionFilter(request.GET, user=request.user)
    query = _query(request.GET, queue_of(request) or "all")
    chosen = queues.select(queue_of(request) or "all", timezone.now(), sieve.where())
    problem, status, estimate = "", 200, None
    form = BulkForm(request.POST if request.method == "POST" else None, kind=kind)
    if not sieve.is_valid():
        # A filter that means nothing would let more sessions in than somebody looked at.
        problem, status = "The filter is wrong: correct it on the desk, then come back.", 400
    elif not actor.may(kind):
        problem, status = NOT_ALLOWED, 403 if request.method == "POST" else 200
    else:
        if request.method == "POST" and form.is_valid():
            try:
                act = form.run(actor, chosen, query)
            except ActionError as error:
                form.add_error(None, str(error))
                status = error.status
            else:
                messages.success(request, "Begun. You may leave this page; it goes on by itself.")
                return redirect("bulk_act", act.pk)
        elif request.method == "POST":
            status = 400
        try:
            estimate = actions.bulk_estimate(actor=actor, kind=kind, sessions=chosen)
        except ActionError as error:
            problem, status = str(error), error.status if request.method == "POST" else 200
    if estimate is not None:
        form = _expecting(form, estimate.total)
    mask = Mask.configured()
    for refusal in estimate.refused if estimate else []:
        refusal.examples = mask.rows(refusal.examples)
    context = {
        "kind": kind,
        "kinds": [(value, label.capitalize()) for value, label in BulkAct.Kind.choices],
        "query": query,
        "filtered": told(query),
        "estimate": estimate,
        "problem": problem,
        "form": form,
    }
    return render_page(request, "desk/bulk_new.html", context, status=status)


@desk
@require_GET
def acts(request: Request) -> HttpResponse:
    """The newest bulk acts."""
    return render_page(request, "desk/bulk_acts.html", {"acts": bulk.acts()})


@desk
@require_GET
def act(request: Request, act_id: int) -> HttpResponse:
    """How far an act is; a part of it is polled until it has finished."""
    found = get_object_or_404(BulkAct.objects.select_related("assignee"), pk=act_id)
    failures = bulk.failures(found, after=number(request.GET.get("after")) or 0)
    for item in failures.items:
        item.session = Mask.configured().row(item.session)
    context = {
        "act": found,
        "progress": bulk.progress(found),
        "failures": failures,
        "filtered": told(found.query),
        "why_not": {"stop": WhyNot(Actor.of(request.user))[found.kind]},
    }
    return render_page(
        request, "desk/bulk_act.html#progress" if wants_part(request) else "desk/bulk_act.html", context
    )


@desk
@require_POST
def stop(request: Request, act_id: int) -> HttpResponse:
    """Leave the sessions alone whose turn has not come."""
    try:
        actions.bulk_stop(actor=Actor.of(request.user), act_id=act_id)
    except ActionError as error:
        context = {"title": "It was not stopped", "text": str(error)}
        return render_page(request, "desk/problem.html", context, status=error.status)
    messages.success(request, "Stopped. What was done stays done.")
    return redirect("bulk_act", act_id)


def _expecting(form: BulkForm, total: int) -> BulkForm:
    """The form as it was filled in, about as many sessions as there are now."""
    if not form.is_bound:
        form.initial["expected"] = total
        return form
    typed = QueryDict(mutable=True)
    typed.update(form.data)
    typed["expected"] = str(total)
    form.data = typed
    return form


def _query(asked: QueryDict, queue: str) -> str:
    kept = asked.copy()
    for name in ("kind", "after", "seen", "queue"):
        kept.pop(name, None)
    kept["queue"] = queue
    return kept.urlencode()


def told(query: str) -> list[tuple[str, Any]]:
    """What a query string chooses, to be read."""
    given = QueryDict(query)
    queue = queues.BY_KEY.get(given.get("queue", ""))
    told = [("queue", queue.title)] if queue else []
    return told + [(name, value) for name, value in given.items() if name != "queue" and value]
