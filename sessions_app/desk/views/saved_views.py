"""Saved views: lists of sessions that are stored under a name."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.contrib import messages
from django.http import HttpResponse, QueryDict
from django.shortcuts import redirect
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from sessions_app import actions
from sessions_app.access import shown
from sessions_app.access.masking import Mask
from sessions_app.access.roles import Actor
from sessions_app.actions.saved_views import why_not_delete
from sessions_app.desk.context import Request, render_page, staff_page, submit, wants_part
from sessions_app.desk.forms.lists import ViewForm
from sessions_app.desk.pages.context import PageContext
from sessions_app.desk.views.bulk import describe_query
from sessions_app.finding.counting import Count
from sessions_app.finding.saved_views import count_views, views_for
from sessions_app.models import SavedView, StaffPermission

WHY_NOT_OPEN = "It filters by a hidden value, so it cannot be opened."


@dataclass(frozen=True, slots=True)
class Chip:
    """A view as a page offers it, masked.

    owner: "" where it is the person's own. ``number``: of what it shows, "" where that has not been counted.
    """

    name: str
    query: str
    owner: str
    number: str
    is_opened: bool


def chips_of(request: Request, context: PageContext, query: QueryDict) -> dict[str, Any]:
    """The views that a page offers as chips, and which of them it shows, for the template. One query.

    They have no numbers yet: to count what dozens of views show takes longer than the page, which asks for the chips
    `with_numbers` when it is there.

    :param query: What the page shows, with its queue.
    """
    return {"views": _chips(_views(request, context.mask), request, query, {})}


def _views(request: Request, mask: Mask) -> list[SavedView]:
    """Those of the user. One that filters by something that is hidden is left out: its address would show it."""
    own_views, shared = views_for(request.user)
    return [view for view in mask.rows([*own_views, *shared]) if not shown.hides_in_query(mask, view.query)]


def _chips(
    views: Sequence[SavedView], request: Request, query: QueryDict, numbers: Mapping[int, Count]
) -> tuple[Chip, ...]:
    filters = _filters(query.lists())
    opened = next((view.pk for view in views if _filters(shown.parameters_of(view.query)) == filters), None)
    return tuple(
        [
            Chip(
                name=view.name,
                query=view.query,
                owner="" if view.owner_id == request.user.pk else vars(view)["owner_name"],
                number=str(numbers.get(view.pk, "")),
                is_opened=view.pk == opened,
            )
            for view in views
        ]
    )


@staff_page
@require_GET
def with_numbers(request: Request) -> HttpResponse:
    """The chips of a page, each with its number. The query string is that of what the page shows, with its queue."""
    if not wants_part(request):
        return redirect("views")
    views = _views(request, Mask.configured())
    numbers = count_views(views, request.user, timezone.now())
    values = {"views": _chips(views, request, request.GET, numbers), "are_counted": True}
    return render_page(request, "desk/_saved_views.html#views", values)


def _filters(parameters: Iterable[tuple[str, Sequence[str]]]) -> dict[str, list[str]]:
    """The values of each parameter that has any."""
    lists = ((name, [value for value in values if value]) for name, values in parameters)
    return {name: values for name, values in lists if values}


@staff_page
@require_GET
def views_page(request: Request) -> HttpResponse:
    """All views that the user can open, each with its filter and with why the user cannot delete it.

    A view that filters by something that is hidden by now cannot be opened: its address would show it.
    """
    mask = Mask.configured()
    own_views, shared = views_for(request.user)
    rows = [
        {
            "view": view,
            "filtered": describe_query(view.query, mask),
            "why_not_open": WHY_NOT_OPEN if shown.hides_in_query(mask, view.query) else "",
            "why_not_delete": why_not_delete(request.user, view, vars(view)["owner_name"]),
        }
        for view in mask.rows([*own_views, *shared])
    ]
    return render_page(request, "desk/saved_views.html", {"rows": rows})


@staff_page
@require_http_methods(["GET", "POST"])
def save(request: Request) -> HttpResponse:
    """Store the list that the query string describes."""
    status = 200
    actor = Actor.of(request.user)
    form = ViewForm(
        request.POST if request.method == "POST" else None,
        initial={"query": request.GET.urlencode()},
        why_not_share=actor.lacks(StaffPermission.SHARE_VIEW),
    )
    if request.method == "POST":
        submission = submit(form, lambda: form.run(actor))
        if (view := submission.result) is not None:
            messages.success(request, f"Saved as “{view.name}”.")
            return redirect(f"{reverse('desk')}?{view.query}")
        status = submission.status
    part = wants_part(request) and request.method == "GET"
    template = "desk/save_view.html#dialog" if part else "desk/save_view.html"
    return render_page(request, template, {"form": form}, status=status)


@staff_page
@require_POST
def delete(request: Request, view_id: int) -> HttpResponse:
    name = actions.delete_view(actor=Actor.of(request.user), view_id=view_id)
    messages.success(request, f"Deleted the view “{Mask.configured().text(name)}”.")
    return redirect("views")
