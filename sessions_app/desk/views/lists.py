"""The sessions in their queues, and one page of the selected one."""

from django.db.models import QuerySet
from django.http import HttpResponse
from django.shortcuts import redirect, resolve_url
from django.views.decorators.http import require_GET

from sessions_app.access.errors import Invalid
from sessions_app.addresses import address
from sessions_app.desk.context import (
    Request,
    page_context,
    queue_of,
    render_page,
    staff_page,
    wants_part,
    without_empty_fields,
)
from sessions_app.desk.pages import demo
from sessions_app.desk.pages.session_rows import read_rows
from sessions_app.desk.views.bulk import describe_hidden
from sessions_app.desk.views.saved_views import chips_of
from sessions_app.finding import hits, queue_numbers, queues
from sessions_app.finding.filters import PAGING, SessionFilter
from sessions_app.finding.hidden import may_know_hidden
from sessions_app.finding.session_list import read_list
from sessions_app.models import RegisteredAgent
from sessions_app.models.compiled import compiled

# How often a live list polls.
SECONDS = 5


@staff_page
@require_GET
def sessions_page(request: Request) -> HttpResponse:
    """A queue. With ``seen`` it answers 204 unless its list or a count has changed: that is what a live list polls.

    The first page of the desk is the inbox: the address without a query opens it, as does that of its former queue.
    """
    if not request.GET or queue_of(request) == queues.ATTENTION.key:
        return _to_inbox(request)
    if short := without_empty_fields(request):
        return redirect(short if "?" in short else address("desk", queue="all"))
    context = page_context(request)
    now = context.now
    key = queue_of(request) or "all"
    session_filter = SessionFilter(request.GET, user=request.user)
    after = request.GET.get("after", "")
    if after and queues.read_cursor(after) is None:
        raise Invalid("This address is not a page of this list. Open the list again.")
    oldest_first = queues.ORDERS.get(request.GET.get("order", ""), queues.BY_KEY[key].oldest_first)
    listed = read_list(key, now=now, session_filter=session_filter, after=after, oldest_first=oldest_first)
    if request.GET.get("seen") == listed.mark:
        return HttpResponse(status=204)
    sessions = context.mask.rows(listed.sessions)
    agents = _agents()
    titles = {agent: title for agent, title, _ in agents}
    text = session_filter.text
    hits_in = hits.first_in_each(sessions, text, mask=context.mask, whole=may_know_hidden(request.user))
    values = {
        "sought": text,
        "queue": queues.BY_KEY[key],
        "counts": listed.counts,
        "rows": read_rows(sessions, key, titles, context, text, hits_in),
        "next": listed.next,
        "is_cut": session_filter.found.is_cut_listed,
        "is_narrowed": key != "all" or session_filter.narrows,
        "after": after,
        "filter": session_filter,
        "oldest_first": oldest_first,
        "demo": demo.suggestions((agent, model) for agent, _, model in agents),
        "named": describe_hidden(request.GET, context.mask) if session_filter.is_on else (),
        "results": listed.number_of(key) if session_filter.is_on else None,
        "mark": listed.mark,
        "seconds": SECONDS,
        "why_not": context.why_not,
        "now": now,
    }
    if wants_part(request):
        return render_page(request, "desk/sessions.html#list", values)
    filtered = request.GET.copy()
    for name in PAGING:
        filtered.pop(name, None)
    filtered["queue"] = key
    others = {name for name, value in session_filter.cleaned_data.items() if value} - {"assignee"}
    # The number is that of the whole queue.
    mine = None if others else queue_numbers.count_of_own(key, request.user, now)
    values |= chips_of(request, context, filtered) | {"mine": mine}
    return render_page(request, "desk/sessions.html", values)


@compiled
def _agents() -> QuerySet[RegisteredAgent, tuple[str, str, str]]:
    return RegisteredAgent.objects.values_list("key", "title", "model")


def _to_inbox(request: Request) -> HttpResponse:
    query = request.GET.copy()
    for name in ("queue", *PAGING):
        query.pop(name, None)
    return redirect(f"{resolve_url('inbox')}?{query.urlencode()}" if query else "inbox")
