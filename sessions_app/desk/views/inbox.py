"""The inbox: what waits for a person, decided where it stands; and deciding several approvals at once."""

from typing import Any

from django.db.models import QuerySet
from django.http import HttpResponse, QueryDict
from django.shortcuts import redirect, resolve_url
from django.views.decorators.http import require_GET, require_POST

from agentstate.names import SCRIPTED_MODEL
from sessions_app.access.errors import Invalid
from sessions_app.access.typed import REJECTION_CHARACTERS
from sessions_app.action_list import APPROVE
from sessions_app.addresses import address
from sessions_app.desk import toasts
from sessions_app.desk.context import Request, page_context, render_page, staff_page, wants_part
from sessions_app.desk.forms.batch import BatchForm
from sessions_app.desk.pages import demo
from sessions_app.desk.pages import inbox as inbox_pages
from sessions_app.desk.pages.approvals import Batch
from sessions_app.desk.pages.context import PageContext
from sessions_app.desk.pages.inbox import Listing
from sessions_app.desk.views.bulk import describe_query
from sessions_app.desk.views.saved_views import chips_of
from sessions_app.finding import inbox_condition, inbox_counts, inbox_cursor, queues
from sessions_app.finding.counting import MOST, Count, total
from sessions_app.finding.filters import PAGING, SessionFilter
from sessions_app.finding.inbox_rows import APPROVAL, KINDS, OF_TOOLS
from sessions_app.finding.inbox_states import Condition
from sessions_app.models import RegisteredAgent
from sessions_app.models.compiled import compiled

# How often an open inbox polls.
SECONDS = 5


@staff_page
@require_GET
def inbox_page(request: Request) -> HttpResponse:
    """What waits for a person. With ``seen`` (the mark of what the page shows) it answers 204 while nothing changes."""
    after = request.GET.get("after", "")
    if after and inbox_cursor.read_cursor(after) is None:
        raise Invalid("This address is not a page of the inbox. Open the inbox again.")
    return _render(request, page_context(request), request.GET, after=after)


@staff_page
@require_GET
def approvals_moved(request: Request) -> HttpResponse:
    """The former page of the approvals, for links that people have kept."""
    query = QueryDict(mutable=True)
    query["kind"] = APPROVAL
    if tool := request.GET.get("tool"):
        query["tool"] = tool
    return redirect(f"{resolve_url('inbox')}?{query.urlencode()}", permanent=True)


@staff_page
@require_POST
def decide_batch(request: Request) -> HttpResponse:
    """Approve or reject the calls that are ticked, all of one tool, and show the outcome of each.

    The query is that of the inbox on which they were ticked: where something is refused, that page is shown again.
    """
    context = page_context(request)
    form = BatchForm(request.POST)
    # The page's own field: no tool has a NUL character in its name, and in an address the middleware refuses one.
    tool = request.POST.get("tool", "").replace("\x00", "")
    query = request.GET.copy()
    query["kind"], query["tool"] = APPROVAL, tool
    after = query.get("after", "")
    after = after if inbox_cursor.read_cursor(after) is not None else ""
    if context.why_not.of(APPROVE):
        return _render(request, context, query, after=after, form=form, status=403)
    if not form.is_valid():
        return _render(request, context, query, after=after, form=form, status=400)
    outcomes = form.run(context)
    back = inbox_pages.address_of_inbox(_without(request.GET, *PAGING).urlencode())
    if all(outcome.done for outcome in outcomes):
        toasts.tell_of_batch(request, form.done, outcomes)
        return redirect(back)
    values = {"outcomes": outcomes, "done": form.done, "back": back}
    return render_page(request, "inbox/batch_outcome.html", values, status=409)


def _render(
    request: Request,
    context: PageContext,
    query: QueryDict,
    *,
    after: str = "",
    form: BatchForm | None = None,
    status: int = 200,
) -> HttpResponse:
    session_filter = SessionFilter(query, user=request.user)
    oldest_first = query.get("order") != "newest"
    condition = inbox_condition.prepare(session_filter, context.now, oldest_first=oldest_first)
    tool, kind = query.get("tool", ""), _kind(query)
    listing = inbox_pages.list_page(
        context, kind=kind, condition=condition, tool=tool, after=after, oldest_first=oldest_first
    )
    if request.GET.get("seen") == listing.mark:
        return HttpResponse(status=204)
    in_batch = bool(tool) and not context.why_not.of(APPROVE)
    batch = (Batch(form.typed, least=1) if form else Batch()) if in_batch else None
    page = inbox_pages.read_page(context, listing, batch=batch)
    kept = _without(query, *PAGING)
    filters = _without(kept, "kind", "tool", "order")
    sessions_query = _of_sessions(filters, session_filter)
    filtered = describe_query(filters.urlencode(), context.mask)
    mine = query.get("assignee") == "me"
    poll = kept.copy()
    poll.update({"after": after, "seen": page.mark} if after else {"seen": page.mark})
    values = {
        "queue": queues.ATTENTION,
        "page": page,
        "kind": kind,
        "tool": tool,
        "after": after,
        "oldest_first": oldest_first,
        "now": context.now,
        "seconds": SECONDS,
        "why_not": context.why_not,
        "back": f"inbox?{kept.urlencode()}" if kept else "inbox",
        "poll": f"{address('inbox')}?{poll.urlencode()}",
        "filtered": filtered,
        # Beside the chip of one's own sessions.
        "others": [(name, value) for name, value in filtered if not mine or name != "assignee"],
        "sessions_query": sessions_query,
        # Of one status or phase those with a cause may be in another phase than the failed ones: some wait.
        "finds_failed": not {"status", "phase"} & {*sessions_query},
        "is_cut": session_filter.found.is_cut_listed,
        "batch": form,
        "most_characters": REJECTION_CHARACTERS,
        # A refused form is shown again, with what was typed, also when its calls have been decided meanwhile.
        "offers_batch": in_batch and (form is not None or page.has_ticks),
        "mine": mine,
        "number_of_mine": _number_of_mine(request, context, listing, session_filter, condition, tool),
    }
    if wants_part(request):
        return render_page(request, "inbox/inbox.html#lines", values, status=status)
    values |= _around_the_lines(request, context, filters, order=query.get("order", ""))
    if condition is None and not tool:
        # What the bar would count again.
        values["waiting_for_people"] = page.total
    return render_page(request, "inbox/inbox.html", values, status=status)


def _around_the_lines(
    request: Request, context: PageContext, filters: QueryDict, *, order: str
) -> dict[str, Any]:
    """What only the whole page shows, beside the lines that its poll replaces."""
    selected = filters.copy()
    if order:
        selected["order"] = order
    selected["queue"] = queues.ATTENTION.key
    return {
        **chips_of(request, context, selected),
        "demo": demo.suggestions(_scripted_agents()),
    }


@compiled
def _scripted_agents() -> QuerySet[RegisteredAgent, tuple[str, str]]:
    return RegisteredAgent.objects.filter(model=SCRIPTED_MODEL).values_list("key", "model")


def _number_of_mine(
    request: Request,
    context: PageContext,
    listing: Listing,
    session_filter: SessionFilter,
    condition: Condition | None,
    tool: str,
) -> Count:
    """How many of the lines that the filter and the kind leave are of the person's own sessions. Up to three queries.

    Of a kind without lines none are, and where the filter asks for one's own sessions all are.
    """
    numbers = {kind: n for kind, n in listing.numbers.items() if listing.kind in ("", kind)}
    number = total(numbers.values())
    if session_filter.is_of_own and (not number.more or number.number == MOST):
        return number
    kinds = [kind for kind, n in numbers.items() if n]
    return inbox_counts.count_together(context.now, condition, tool, kinds=kinds, assignee=request.user.pk)


def _kind(query: QueryDict) -> str:
    """The kind of lines that the page is limited to; "" for all. A tool's page has no lines of other kinds."""
    kind = query.get("kind", "")
    return kind if kind in (OF_TOOLS if query.get("tool") else KINDS) else ""


def _of_sessions(filters: QueryDict, session_filter: SessionFilter) -> QueryDict:
    """The query of the list of the sessions, in all queues, that the valid filters of the inbox leave."""
    query = QueryDict(mutable=True)
    query["queue"] = "all"
    for name, value in session_filter.cleaned_data.items():
        if value:
            query.setlist(name, filters.getlist(name))
    return query


def _without(query: QueryDict, *names: str) -> QueryDict:
    """The parameters without these, in a copy that can be changed."""
    rest = query.copy()
    for name in names:
        rest.pop(name, None)
    return rest
