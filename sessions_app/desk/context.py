"""What every page has in common: who may see it, how a session is found, and the frame around it."""

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, Concatenate, ParamSpec, cast
from urllib.parse import urlsplit
from uuid import UUID

from django.contrib.auth.models import User
from django.contrib.auth.views import redirect_to_login
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render, resolve_url
from django.utils import timezone
from django.utils.cache import patch_vary_headers
from django_htmx.http import HttpResponseClientRedirect
from django_htmx.middleware import HtmxDetails

from sessions_app import actions
from sessions_app.access.errors import ActionError
from sessions_app.access.masking import Mask
from sessions_app.access.roles import Actor
from sessions_app.desk.pages import approvals, workers
from sessions_app.finding import queues
from sessions_app.models import Branch, Session

P = ParamSpec("P")


class Request(HttpRequest):
    """A request of somebody who is logged in."""

    user: User
    htmx: HtmxDetails


def desk(
    view: Callable[Concatenate[Request, P], HttpResponse],
) -> Callable[Concatenate[HttpRequest, P], HttpResponse]:
    """A page for staff: others are sent to the login, those without the right to look get 403."""

    @wraps(view)
    def guarded(request: HttpRequest, *args: P.args, **kwargs: P.kwargs) -> HttpResponse:
        htmx: HtmxDetails = request.htmx  # type: ignore[attr-defined]
        if not request.user.is_authenticated:
            if htmx:
                here = urlsplit(htmx.current_url_abs_path or "/")
                login = redirect_to_login(f"{here.path}?{here.query}" if here.query else here.path)
                return HttpResponseClientRedirect(login.url)
            return redirect_to_login(request.get_full_path())
        if not Actor.of(request.user).may("view"):
            text = "Your account may not see sessions. Ask a supervisor to give you a role."
            return page(request, "desk/problem.html", {"title": "Not allowed", "text": text}, status=403)
        try:
            response = view(request, *args, **kwargs)  # type: ignore[arg-type]
        except ActionError as error:
            context = {"title": "This was not done", "text": str(error)}
            response = page(request, "desk/problem.html", context, status=error.status)
        patch_vary_headers(response, ["HX-Request"])
        return response

    return cast("Callable[Concatenate[HttpRequest, P], HttpResponse]", guarded)


def find(session_id: UUID, mask: Mask) -> tuple[Session, Branch]:
    """The session and its present branch, or a 404. It is for showing: what the mask hides of it is hidden in it."""
    session = (
        Session.objects.select_related("branch", "assignee", "forked_from__branch")
        .filter(pk=session_id)
        .first()
    )
    if session is None or session.branch is None:
        raise Http404("There is no such session.")
    return mask.row(session), session.branch


def mask_of(request: Request, session_id: UUID, what: str) -> Mask:
    """What is hidden on this page. Who may, and asks for it by a POST, sees all of it, and that is on record then."""
    if request.method != "POST":
        return Mask.configured()
    actions.reveal(actor=Actor.of(request.user), session_id=session_id, what=what)
    return Mask.none()


def page(
    request: HttpRequest, template: str, context: Mapping[str, Any], *, status: int = 200
) -> HttpResponse:
    """A whole page, or with htmx a part of one (``template`` then names a partial)."""
    whole = "#" not in template
    return render(request, template, {**(frame(request) if whole else {}), **context}, status=status)


def frame(request: HttpRequest) -> dict[str, Any]:
    """What the bar at the top of every page shows."""
    if not request.user.is_authenticated:
        return {}
    now = timezone.now()
    return {"open_approvals": approvals.number(now), "nobody_listens": workers.nobody_listens(now)}


def wants_part(request: Request) -> bool:
    """Whether htmx asks for a part of the page only."""
    return bool(request.htmx) and not request.htmx.boosted


def number(value: str | None) -> int | None:
    """A position from the query string; None for nothing, and for what is none."""
    return int(value) if value and value.isdecimal() and len(value) < 19 else None


def queue_of(request: HttpRequest) -> str:
    """The queue from which the page was opened, "" for none."""
    key = request.GET.get("queue", "")
    return key if key in queues.BY_KEY else ""


def session_url(session: Session, queue: str = "") -> str:
    return resolve_url("session", session.pk) + (f"?queue={queue}" if queue else "")
