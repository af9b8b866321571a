"""A session's timeline: the page, what it polls, its earlier steps and its discarded branches."""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from django.http import Http404, HttpResponse
from django.shortcuts import redirect, resolve_url
from django.views.decorators.http import require_GET

from sessions_app.desk.context import Request, number, render_page, session_context, staff_page, wants_part
from sessions_app.desk.pages.session import (
    diagnosis,
    diagram,
    discarded,
    discarded_steps,
    repairs,
    time_strip,
    timeline,
    timeline_filter,
)
from sessions_app.desk.pages.session.beside import beside
from sessions_app.desk.pages.session.context import SessionContext
from sessions_app.desk.pages.session.header import Header
from sessions_app.desk.pages.session.kept_steps import kept_steps, mark_of_newest
from sessions_app.desk.pages.session.partial_reply import partial_reply
from sessions_app.desk.pages.session.timeline_items import GapItem
from sessions_app.desk.views.live import only_the_reply, poll, unless_unchanged
from sessions_app.desk.views.session import approval_cards, doubts_of, session_frame, session_values, unread
from sessions_app.history import restore
from sessions_app.models import Branch, Checkpoint, Status

# The time strip and the diagnosis look back over many steps: while a session runs, a page keeps them for so long.
KEEP_SECONDS = 10


_HIDE = "hide"


@staff_page
@require_GET
def timeline_tab(request: Request, session_id: UUID) -> HttpResponse:
    """The newest steps, or with ``before`` earlier ones, or with ``at`` those around a position."""
    context = session_context(request, session_id)
    only = timeline_filter.parse(request.GET)
    at = number(request, "at")
    before = (
        timeline.before_of_page_around(context.branch, at) if at is not None else number(request, "before")
    )
    page = timeline.read_page(context, before=before, only=only)
    frame = session_frame(request, context)
    around = _around_timeline(context, frame["header"])
    is_live = before is None and only is None
    values = {
        "tab": "timeline",
        "page": page,
        "only": only,
        "gaps": _shows_gaps(request),
        "live": _sentinel(request, context, page, around) if is_live else None,
        "partial": partial_reply(context),
    }
    return render_page(request, "session/timeline.html", frame | values | around)


@staff_page
@require_GET
def earlier_steps(request: Request, session_id: UUID) -> HttpResponse:
    """The page of steps before ``before``, to be put before those shown; without htmx, a page of its own."""
    if not wants_part(request):
        return timeline_tab(request, session_id)
    context = session_context(request, session_id)
    only = timeline_filter.parse(request.GET)
    values = {
        "session": context.session,
        "page": timeline.read_page(context, before=number(request, "before"), only=only),
        "only": only,
        "gaps": _shows_gaps(request),
        "queue": context.queue,
        "why_not": context.why_not,
        "repair_from": repairs.newest_checkpoint_position(context.branch),
        # Open approvals and calls in doubt belong to the newest step, which is not among earlier ones.
        "cards": {},
        "doubts": {},
    }
    return render_page(request, "session/timeline.html#earlier", values)


@staff_page
@require_GET
def discarded_branch(request: Request, session_id: UUID, branch_number: int) -> HttpResponse:
    """The discarded steps of a branch, dimmed: in place with htmx, else as a page.

    The first of them, with ``from`` those from a position on, or with ``at`` those around one.
    """
    context = session_context(request, session_id)
    item = discarded.find(context, branch_number)
    if item is None:
        raise Http404("No steps of that branch were discarded.")
    branch = Branch.objects.get(session=context.session, number=branch_number)
    in_place = wants_part(request)
    first, at = number(request, "from"), number(request, "at")
    if at is not None:
        first = discarded_steps.first_of_page_around(branch, item, at)
    values = {
        "session": context.session,
        "discarded": item,
        "page": discarded_steps.read_page(context, branch, item, first=first or 0, in_place=in_place),
        "in_place": in_place,
        "is_discarded": True,
        "why_not": context.why_not,
        "queue": context.queue,
    }
    if in_place:
        part = "branch" if first is None else "later"
        return render_page(request, f"session/discarded.html#{part}", values)
    return render_page(request, "session/discarded.html", session_frame(request, context) | values)


@staff_page
@require_GET
def discarded_branch_moved(request: Request, session_id: UUID, branch_number: int) -> HttpResponse:
    """The former address of a discarded branch, for links that people have kept."""
    query = request.GET.urlencode()
    address = resolve_url("discarded", session_id, branch_number)
    return redirect(f"{address}?{query}" if query else address, permanent=True)


@unless_unchanged
@staff_page
@require_GET
def live(request: Request, session_id: UUID) -> HttpResponse:
    """The parts of the page that have changed: new items to append, and the rest out of band."""
    context = session_context(request, session_id)
    partial = partial_reply(context)
    if answer := only_the_reply(request, context, partial):
        return answer
    first, shown = number(request, "from") or 0, number(request, "shown") or 0
    shown_parts = session_values(request, context)
    moved = request.GET.get("branch") != str(context.branch.number)
    kept = None if moved else _kept(request, context)
    beside_shown = "" if moved else request.GET.get("beside", "")
    # The steps are read before people's actions are counted: what people do in between is counted again next time.
    page = timeline.read_page(context) if moved else timeline.read_since(context, first)
    around = _around_timeline(
        context,
        shown_parts["header"],
        looks_back=kept is None,
        shown=beside_shown,
        counts_people=moved or page.last_of_people > shown,
        checkpoint=page.newest_checkpoint,
    )
    waited = not moved and "unbegun" in request.GET
    inserted = timeline.above_the_first_step(page.items) if waited else []
    below = page.items[len(inserted) :]
    values = {
        "page": page,
        "moved": moved,
        "first": not shown and bool(page.items),
        "inserted": inserted,
        "begun_step": first,
        "shown": shown,
        # How long nothing happened does not change.
        "old": [
            item for item in below if item.position <= shown and not isinstance(item, GapItem) and not moved
        ],
        "new": [item for item in below if item.position > shown or moved],
        "gaps": _shows_gaps(request),
        "kept_steps": set() if moved else kept_steps(context, page.items, request.GET.getlist("mark")),
        "keeps_times": kept is not None,
        "live": _sentinel(request, context, page, around, shown, kept=kept),
        "partial": partial,
    }
    response = render_page(request, "session/live.html", shown_parts | values | around)
    if moved:
        response["HX-Retarget"], response["HX-Reswap"] = "#timeline", "outerHTML"
    return response


def _shows_gaps(request: Request) -> bool:
    """Whether the page shows how long nothing happened."""
    return request.GET.get("gaps") != _HIDE


def _kept(request: Request, context: SessionContext) -> int | None:
    """When the page drew the time strip and the diagnosis, if it keeps them now: in seconds since 1970."""
    drawn, now = number(request, "drawn"), context.now.timestamp()
    if drawn is None or context.session.status != Status.RUNNING or not drawn <= now < drawn + KEEP_SECONDS:
        return None
    return drawn


def _drawn(context: SessionContext, around: Mapping[str, Any]) -> int | None:
    """That they are drawn now; None where the next answer is to draw them again, since what they say may soon be wrong.

    So a hint is never kept.
    """
    needs_a_person = around["beside"].hints or around["cards"] or around["doubts"]
    return (
        None if needs_a_person or context.session.status != Status.RUNNING else int(context.now.timestamp())
    )


def _around_timeline(
    context: SessionContext,
    header: Header,
    *,
    looks_back: bool = True,
    shown: str = "",
    counts_people: bool = True,
    checkpoint: Checkpoint | None = None,
) -> dict[str, Any]:
    """What stands beside the steps: the diagram and the time strip, unread messages, open approvals, side column.

    :param looks_back: With the time strip and the diagnosis.
    :param shown: The version of the side column that the page shows, "" for none.
    :param counts_people: Whether the number of people's actions may be another than the page shows.
    :param checkpoint: The newest of the branch; None if it is to be looked for.
    """
    checkpoint = checkpoint or restore.last_visible(Checkpoint, context.branch)
    return {
        "diagram": diagram.of_session(context),
        "strip": time_strip.strip(context) if looks_back else None,
        "inbox": unread(context),
        "cards": approval_cards(context, header),
        "doubts": doubts_of(context, header),
        "beside": beside(
            context,
            agent=header.agent,
            checkpoint=checkpoint,
            hints=diagnosis.diagnose(context, checkpoint) if looks_back else [],
            shown=shown,
        ),
        "repair_from": checkpoint.position if checkpoint else 0,
        "failed_calls": sum(
            context.session.totals.get(name, 0) for name in ("tool_errors", "failed_model_calls")
        ),
        "peoples_actions": timeline_filter.count_of_people(context.branch) if counts_people else None,
    }


def _sentinel(
    request: Request,
    context: SessionContext,
    page: timeline.TimelinePage,
    around: Mapping[str, Any],
    shown: int = 0,
    *,
    kept: int | None = None,
) -> dict[str, Any] | None:
    """What the last item of a live list polls, how often, and the mark of its newest step.

    None while nothing can happen by itself.

    :param shown: The last position that the page shows, if ``page`` has no items.
    :param kept: As `_kept` returns it.
    """
    drawn = _drawn(context, around) if kept is None else kept
    polled = poll(request, context, until=None if kept is None else kept + KEEP_SECONDS)
    if polled is None:
        return None
    shows = {
        "branch": context.branch.number,
        "from": page.last_step,
        "shown": max([item.position for item in page.items], default=shown),
        "drawn": drawn,
        "beside": around["beside"].version,
        "unbegun": None if page.newest_has_begun else 1,
        "gaps": None if _shows_gaps(request) else _HIDE,
    }
    return {**polled, "shows": shows, "mark": mark_of_newest(context, page.items)}
