"""Bulk actions: what one would do, how far it is, what it could not do."""

from typing import Any

from django.contrib import messages
from django.http import HttpResponse, QueryDict
from django.shortcuts import get_object_or_404, redirect
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from sessions_app import actions
from sessions_app.access import shown
from sessions_app.access.action import Action
from sessions_app.access.errors import ActionError
from sessions_app.access.masking import Mask
from sessions_app.access.roles import Actor
from sessions_app.action_list import ACTIONS, ASSIGN, PAUSE, RESUME
from sessions_app.desk.context import (
    Request,
    number,
    page_context,
    queue_of,
    render_page,
    staff_page,
    submit,
    wants_part,
)
from sessions_app.desk.forms.lists import BulkForm
from sessions_app.desk.pages import bulk as bulk_pages
from sessions_app.desk.pages.causes import read_cause
from sessions_app.finding import queues
from sessions_app.finding.filters import HIDDEN_FILTERS, NO_NAMES, SessionFilter
from sessions_app.finding.session_list import condition_of
from sessions_app.models import BulkAction

BULK_ACTIONS = {action.key: action for action in ACTIONS.values() if action.bulk}
# What takes a bulk action back.
REVERSE = {PAUSE.key: RESUME, RESUME.key: PAUSE}


@staff_page
@require_http_methods(["GET", "POST"])
def begin(request: Request) -> HttpResponse:
    """What an action would do with the sessions that the query string selects; POST starts it for just those."""
    context = page_context(request)
    actor = context.actor
    session_filter = SessionFilter(request.GET, user=request.user)
    queue = queue_of(request) or "all"
    is_valid = session_filter.is_valid() and (request.GET.get("queue") or queue) == queue
    query = _query(session_filter, request.GET.get("order", ""), queue)
    # The sessions that the list shows from which the person comes.
    oldest_first = queues.ORDERS.get(request.GET.get("order", ""))
    where = condition_of(queue, context.now, session_filter, oldest_first=oldest_first)
    sessions = queues.select(queue, context.now, where)
    chosen = actions.bulk_chosen(sessions=sessions)
    action = BULK_ACTIONS.get(request.GET.get("kind", ""))
    if action is None:
        action = actions.bulk_fitting(actor=actor, chosen=chosen) if is_valid else ASSIGN
    posts = request.method == "POST"
    form = BulkForm(request.POST if posts else None, action=action)
    problem, status = _refusal(session_filter, action, actor, is_valid=is_valid, posts=posts)
    estimate = None
    if not problem:
        if posts:
            kept = _as_others_read_it(query, actor) if session_filter.is_of_own else query
            submission = submit(form, lambda: form.run(actor, sessions, kept))
            if submission.result is not None:
                messages.success(request, "Started. You can leave this page.")
                return redirect("bulk_action", submission.result.pk)
            status = submission.status
            # What the query finds may have changed since.
            chosen = actions.bulk_chosen(sessions=sessions)
        try:
            estimate = actions.bulk_estimate(actor=actor, kind=action.key, chosen=chosen)
        except ActionError as error:
            problem, status = context.mask.text(str(error)), error.status if posts else 200
    if estimate is not None:
        form = _expecting(form, estimate.total)
        for refusal in estimate.refused:
            refusal.why, refusal.examples = (
                context.mask.text(refusal.why),
                context.mask.rows(refusal.examples),
            )
    failure = request.GET.get("failure", "")
    advice = read_cause(failure, context.mask).advice if failure and action is RESUME else None
    values = {
        "action": action,
        "choices": BULK_ACTIONS.values(),
        "query": query,
        "filtered": describe_query(query, context.mask),
        "is_cut": session_filter.found.is_cut_listed,
        "estimate": estimate,
        "why_none": f"None of these can be {action.participle}.",
        "advice": advice.for_actor(actor) if advice is not None else None,
        "problem": problem,
        "form": form,
    }
    return render_page(request, "desk/bulk_new.html", values, status=status)


def _refusal(
    session_filter: SessionFilter, action: Action, actor: Actor, *, is_valid: bool, posts: bool
) -> tuple[str, int]:
    """Why nothing can be estimated or begun, with the status of the answer; "" and 200 if it can.

    :param is_valid: Whether the filter is, and there is such a queue.
    """
    if not is_valid:
        # The invalid part of a filter is ignored, so it would select sessions that the person did not see.
        picked = session_filter.errors.get("pick")
        problem = (
            " ".join(map(str, picked))
            if picked
            else "The filter is invalid: correct it in the list of sessions."
        )
        return problem, 400
    if lacking := action.lacking(actor):
        return lacking, 403 if posts else 200
    return "", 200


@staff_page
@require_GET
def bulk_actions(request: Request) -> HttpResponse:
    """The newest bulk actions."""
    newest = bulk_pages.bulk_actions(page_context(request).mask)
    return render_page(request, "desk/bulk_actions.html", {"bulk_actions": newest})


@staff_page
@require_GET
def bulk_action(request: Request, bulk_id: int) -> HttpResponse:
    """How far a bulk action is; a part of the page is polled until it has finished."""
    bulk = get_object_or_404(BulkAction.objects.select_related("assignee"), pk=bulk_id)
    context = page_context(request)
    action = ACTIONS[bulk.kind]
    values = {
        "bulk": context.mask.row(bulk),
        "action": action,
        "assigns": "assignee" in action.bulk_fields,
        "progress": bulk_pages.progress(bulk),
        "failures": bulk_pages.failures(context, bulk, after=number(request, "after") or 0),
        "done": bulk_pages.done(context, bulk),
        "reverse": REVERSE.get(bulk.kind),
        "list": "" if shown.hides_in_query(context.mask, bulk.query) else bulk.query,
        "filtered": describe_query(bulk.query, context.mask, bulk=bulk),
        "why_not_stop": action.lacking(context.actor),
    }
    template = "desk/bulk_action.html#progress" if wants_part(request) else "desk/bulk_action.html"
    return render_page(request, template, values)


@staff_page
@require_POST
def stop(request: Request, bulk_id: int) -> HttpResponse:
    """Leave out the sessions that have not been done yet."""
    actions.bulk_stop(actor=Actor.of(request.user), bulk_id=bulk_id)
    messages.success(request, "Stopped. What was done stays done.")
    return redirect("bulk_action", bulk_id)


def _expecting(form: BulkForm, total: int) -> BulkForm:
    """The form as it was filled in, for the number of sessions that there are now."""
    if not form.is_bound:
        form.initial["expected"] = total
        return form
    typed = QueryDict(mutable=True)
    typed.update(form.data)
    typed["expected"] = str(total)
    form.data = typed
    return form


def _query(session_filter: SessionFilter, order: str, queue: str) -> str:
    """The filter's own fields as they were sent, and nothing else: what is stored has to be read again."""
    query = QueryDict(mutable=True)
    sent = {name: session_filter[name].data for name in session_filter.fields}
    for name, value in {**sent, "order": order, "queue": queue}.items():
        query.setlist(name, list(filter(None, value if isinstance(value, list) else [value])))
    return query.urlencode()


def _as_others_read_it(query: str, actor: Actor) -> str:
    """The query string of the person's own sessions, which says whose they are: others see what a bulk action has
    selected.
    """
    if actor.name in NO_NAMES:
        return query
    parameters = QueryDict(query, mutable=True)
    parameters["assignee"] = actor.name
    return parameters.urlencode()


def describe_hidden(parameters: QueryDict, mask: Mask) -> list[tuple[str, Any]]:
    """As `describe_query`, of the filters that have no field in the form above a list."""
    hidden = QueryDict(mutable=True)
    for name in HIDDEN_FILTERS:
        hidden.setlist(name, parameters.getlist(name))
    return describe_query(hidden.urlencode(), mask)


def describe_query(query: str, mask: Mask, *, bulk: BulkAction | None = None) -> list[tuple[str, Any]]:
    """``(name, value)`` of each filter of a list's query string, masked. At most six queries for a cause of failures.

    :param bulk: The bulk action on what the query has selected, if there was one.
    """
    parameters = QueryDict(query)
    queue = queues.BY_KEY.get(parameters.get("queue", ""))
    filters = [
        (name, shown.tag(mask, str(value)) if name == "tag" else mask.named(name, value))
        for name, value in parameters.items()
        if name not in ("queue", "order", *HIDDEN_FILTERS) and value
    ]
    if parameters.get("failure"):
        filters.append(("failure", read_cause(str(parameters["failure"]), mask, bulk=bulk).name))
    if picked := [key for key in parameters.getlist("pick") if key]:
        filters.append(("sessions", f"{len(picked)} selected"))
    if parameters.get("bulk"):
        filters.append(("sessions", f"done by bulk action {mask.text(parameters['bulk'])}"))
    return [*([("queue", queue.title)] if queue else []), *filters]
