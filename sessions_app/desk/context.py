"""What all views have in common: who may see a page, the context of a session's page, and how pages are rendered."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, cast
from urllib.parse import urlencode, urlsplit
from uuid import UUID

from django import forms
from django.contrib.auth.models import User
from django.contrib.auth.views import redirect_to_login
from django.db.models import Exists, OuterRef, QuerySet, Subquery
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.utils.cache import patch_vary_headers
from django.utils.functional import SimpleLazyObject
from django_htmx.http import HttpResponseClientRedirect
from django_htmx.middleware import HtmxDetails

from agentstate.names import OPEN_CALL_STATES
from sessions_app.access.errors import ActionError, Moved
from sessions_app.access.masking import Mask
from sessions_app.access.roles import Actor
from sessions_app.access.typed import requested_number
from sessions_app.addresses import address
from sessions_app.desk.pages import workers
from sessions_app.desk.pages.context import PageContext
from sessions_app.desk.pages.session.context import SessionContext
from sessions_app.desk.pages.why_not import WhyNot
from sessions_app.finding import inbox_counts, queues
from sessions_app.models import Event, InboxMessage, Session, StaffPermission, ToolCall
from sessions_app.models.compiled import compiled

P = ParamSpec("P")
T = TypeVar("T")


class Request(HttpRequest):
    """A request of a logged-in user."""

    user: User
    htmx: HtmxDetails


def staff_page(
    view: Callable[Concatenate[Request, P], HttpResponse],
) -> Callable[Concatenate[HttpRequest, P], HttpResponse]:
    """A page for staff. Visitors are sent to the login; users without the permission to view sessions get 403."""

    @wraps(view)
    def guarded(request: HttpRequest, *args: P.args, **kwargs: P.kwargs) -> HttpResponse:
        htmx: HtmxDetails = request.htmx  # type: ignore[attr-defined]
        if not request.user.is_authenticated:
            if htmx:
                current = urlsplit(htmx.current_url_abs_path or "/")
                login = redirect_to_login(
                    f"{current.path}?{current.query}" if current.query else current.path
                )
                return HttpResponseClientRedirect(login.url)
            redirect = redirect_to_login(request.get_full_path())
            if request.method == "POST":
                redirect["Location"] += "&unsent"  # the form of the login says so
            return redirect
        # A page sends the token of whoever has logged in since, in another tab, and says whose page it is.
        if request.headers.get("Desk-User", str(request.user.pk)) != str(request.user.pk):
            name = request.user.get_username()
            text = f"You are logged in as {name} now, and this page was opened by another user. Reload it."
            values = {"title": "Nothing was changed", "text": text}
            return render_page(request, "desk/problem.html", values, status=403)
        if lacking := Actor.of(request.user).lacks(StaffPermission.VIEW):
            text = f"{lacking} Ask an administrator for it."
            return render_page(
                request, "desk/problem.html", {"title": "Not allowed", "text": text}, status=403
            )
        try:
            response = view(request, *args, **kwargs)  # type: ignore[arg-type]
        except ActionError as error:
            values = {"title": "Nothing was changed", "text": Mask.configured().text(str(error))}
            response = render_page(request, "desk/problem.html", values, status=error.status)
        patch_vary_headers(response, ["HX-Request"])
        return response

    return cast("Callable[Concatenate[HttpRequest, P], HttpResponse]", guarded)


def page_context(request: Request) -> PageContext:
    """The context of a page that is not about one session, made once per request. What is configured is hidden."""
    actor = Actor.of(request.user)
    return PageContext(actor=actor, now=timezone.now(), mask=Mask.configured(), why_not=WhyNot(actor))


def session_context(request: Request, session_id: UUID) -> SessionContext:
    """The context of a session's page, made once per request. What is configured is hidden. One query.

    :raises Http404: if there is no such session.
    """
    return SessionContext.of(
        session_row(session_id),
        actor=Actor.of(request.user),
        now=timezone.now(),
        mask=Mask.configured(),
        queue=queue_of(request),
    )


def session_row(session_id: UUID) -> Session:
    """The session with its branch, its assignee and what it was forked from. One query.

    It is annotated with ``newest_event``, ``has_open_calls`` and ``has_unread_messages``: see `SessionContext`.

    :raises Http404: if there is no such session.
    """
    session = _sessions.first(session_id)
    if session is None:
        raise Http404("There is no such session.")
    return session


@compiled
def _sessions(session_id: UUID) -> QuerySet[Session]:
    rows = Session.objects.select_related("branch", "assignee", "forked_from__branch")
    events = Event.objects.filter(session=OuterRef("pk")).order_by("-position").values("position")
    open_calls = ToolCall.objects.filter(branch=OuterRef("branch"), status__in=OPEN_CALL_STATES)
    return rows.filter(pk=session_id, branch__isnull=False).annotate(
        newest_event=Subquery(events[:1]),
        has_open_calls=Exists(open_calls.order_by()),
        has_unread_messages=Exists(InboxMessage.objects.filter(session=OuterRef("pk")).order_by()),
    )


def render_page(
    request: HttpRequest, template: str, values: Mapping[str, Any], *, status: int = 200
) -> HttpResponse:
    """A whole page, or a part of one where ``template`` names a partial (``desk/agents.html#list``)."""
    is_whole_page = "#" not in template
    return render(request, template, {**(_bar(request) if is_whole_page else {}), **values}, status=status)


def _bar(request: HttpRequest) -> dict[str, Any]:
    """What the bar at the top of every page shows. Two or three queries, which a page without the bar does not make."""
    if not request.user.is_authenticated:
        return {}
    now = timezone.now()
    return {
        "waiting_for_people": SimpleLazyObject(lambda: inbox_counts.count_together(now)),
        "no_worker": SimpleLazyObject(lambda: workers.no_worker_for_due_sessions(now)),
    }


@dataclass(frozen=True, slots=True)
class Submission(Generic[T]):
    """The outcome of a form: its ``result``; or None, the ``status`` of the answer, and the reason on the form.

    ``moved`` says that it was refused because the session had changed since the page was drawn.
    """

    result: T | None = None
    status: int = 200
    moved: bool = False


def submit(form: forms.Form, run: Callable[[], T]) -> Submission[T]:
    """Do what a form asks for, if it is valid. What is wrong with a hidden field is said at the top of the form."""
    if not form.is_valid():
        for field in form.hidden_fields():
            for error in field.errors:
                form.add_error(None, error)
        return Submission(status=400)
    try:
        return Submission(run())
    except ActionError as error:
        form.add_error(None, Mask.configured().text(str(error)))
        form.wrong_argument = error.argument  # type: ignore[attr-defined]
        return Submission(status=error.status, moved=isinstance(error, Moved))


def wants_part(request: Request) -> bool:
    """Whether htmx asks for a part of the page only."""
    return bool(request.htmx) and not request.htmx.boosted


def without_empty_fields(request: Request) -> str | None:
    """The address of a list without the fields of its form that were left empty; None if there are none.

    A form without scripts sends all its fields. Nothing picked is not an empty field, see `SessionFilter`.
    """
    sent = [(name, value) for name, values in request.GET.lists() for value in values]
    filled = [(name, value) for name, value in sent if value or name == "pick"]
    if wants_part(request) or len(filled) == len(sent):
        return None
    return f"{request.path}?{urlencode(filled)}" if filled else request.path


def number(request: HttpRequest, name: str) -> int | None:
    """A position or a key from the query string; None if it is missing or empty.

    :raises Invalid: if it is not one, which `desk` answers with 400.
    """
    return requested_number(name, request.GET.get(name))


def queue_of(request: HttpRequest) -> str:
    """The key of the queue from which the page was opened, "" for none."""
    key = request.GET.get("queue", "")
    return key if key in queues.BY_KEY else ""


def session_url(session: Session, queue: str = "") -> str:
    return address("session", session.pk, queue=queue)
