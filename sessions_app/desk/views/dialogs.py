"""The dialog of an action on a session: one view for all of them, driven by the action's declaration and its form.

GET shows what will happen, and asks for what is needed. POST does it; if it is refused, the same dialog comes back with
the reason, the status of the refusal, and all that was typed: in place with htmx, else as a page. Where nothing is left
to decide, as after a decision of another person, it has the reason and what was typed, but no fields.
"""

from typing import Any
from uuid import UUID

from django.contrib import messages
from django.forms import CharField
from django.http import Http404, HttpResponse
from django.shortcuts import redirect, resolve_url
from django.utils import timezone
from django.views.decorators.http import require_GET, require_http_methods
from django_htmx.http import HttpResponseClientRedirect, replace_url

from sessions_app.access.action import Action
from sessions_app.access.availability import agent_cannot_run
from sessions_app.access.roles import Actor
from sessions_app.action_list import ACTIONS, APPROVE, FORK, MESSAGE
from sessions_app.addresses import address, read_query
from sessions_app.desk import toasts
from sessions_app.desk.context import (
    Request,
    number,
    queue_of,
    render_page,
    session_context,
    session_url,
    staff_page,
    submit,
    wants_part,
)
from sessions_app.desk.forms import calls, form_of, memory_entries, repair
from sessions_app.desk.forms.base import ActionForm, ContinuingForm
from sessions_app.desk.forms.edited import edited_texts
from sessions_app.desk.forms.start import StartForm
from sessions_app.desk.pages import approvals, demo, workers
from sessions_app.desk.pages.definition_changes import changes_of
from sessions_app.desk.pages.inbox import address_of_inbox
from sessions_app.desk.pages.session import checkpoints, repairs
from sessions_app.desk.pages.session.context import SessionContext
from sessions_app.desk.pages.why_not import WhyNot
from sessions_app.models import Approval, Event, Message, Session

# So many of a session's events say why a dialog is out of date.
LAST_EVENTS = 2


@staff_page
@require_http_methods(["GET", "POST"])
def start(request: Request) -> HttpResponse:
    """Start a session. With ``choose`` the form is only drawn again, for the agent that was chosen in it."""
    actor = Actor.of(request.user)
    chooses = "choose" in request.GET
    if chooses:
        form = StartForm(initial=request.POST.dict(), typed=request.POST)
    else:
        form = StartForm(
            request.POST if request.method == "POST" else None,
            initial={name: request.GET.get(name) for name in ("agent", "message")},
        )
    status = 200
    if request.method == "POST" and not chooses:
        submission = submit(form, lambda: form.run(actor))
        if submission.result is not None:
            messages.success(request, "Started. A worker will pick it up.")
            return redirect("session", submission.result.pk)
        status = submission.status
    context = {
        "form": form,
        "agents": form.agents,
        "is_worker_online": not form.agents and workers.is_one_online(timezone.now()),
        "demo": demo.suggestions((agent.key, agent.model) for agent in form.agents),
        "why_not": WhyNot(actor),
    }
    if not chooses or not wants_part(request):
        return render_page(request, "desk/start.html", context, status=status)
    response = render_page(request, "desk/start.html#form", context)
    # Who goes back to the form finds it with the fields in which they typed.
    return replace_url(response, address("start", agent=form["agent"].value()))


@staff_page
@require_http_methods(["GET", "POST"])
def dialog(request: Request, session_id: UUID, name: str) -> HttpResponse:
    """The dialog of one action."""
    action = ACTIONS.get(name)
    form_class = form_of(action) if action is not None else None
    if action is None or form_class is None:
        raise Http404("There is no such action.")
    context = session_context(request, session_id)
    if request.method == "GET":
        initial = _initial(request, action, context)
        return _render(request, form_class(action=action, context=context, initial=initial))
    form = form_class(request.POST, action=action, context=context)
    submission = submit(form, form.run)
    if submission.result is None:
        return _render(request, form, status=submission.status, moved=submission.moved)
    toasts.tell(request, form, submission.result)
    target = _where_next(request, form, submission.result)
    return _redirect_in_browser(request, target) if wants_part(request) else redirect(target)


def _redirect_in_browser(request: Request, target: str) -> HttpResponse:
    """To another page; one that is only another place of the page itself is loaded anew."""
    response = HttpResponseClientRedirect(target)
    page, _, place = target.partition("#")
    if place and (request.htmx.current_url_abs_path or "").partition("#")[0] == page:
        response["HX-Refresh"] = "true"
    return response


def _where_next(request: Request, form: ActionForm, session: Session) -> str:
    """The page to show once it is done: the session, or the inbox or list, as filtered, if it was done there.

    In the inbox the keyboard goes on at the next line, which the address names, and on the session's page at the call
    that was decided. Who sends a message is brought to where
    the answer will be, and who changes the long-term memory back to it.
    """
    back, _, place = request.POST.get("back", "").partition("#")
    page, _, query = back.partition("?")
    action = form.action
    if page == "inbox":
        return address_of_inbox(query, place)
    if page == "desk" and (list_query := read_query(query)):
        return f"{resolve_url('desk')}?{list_query.urlencode()}#s{session.pk}"
    if action in memory_entries.FORMS:
        return address("memories", session.pk, queue=queue_of(request))
    if action is not MESSAGE:
        page = session_url(session, queue_of(request))
        return f"{page}#{form.place}" if form.place else page
    tab = "conversation" if page == "conversation" else "session"
    return f"{address(tab, session.pk, queue=queue_of(request))}#inbox"


def _initial(request: Request, action: Action, context: SessionContext) -> dict[str, Any]:
    """What the fields hold at first: what the address names, and what the session holds now.

    ``reword`` names the place from which a fork says the last message in other words.
    """
    session = context.session_row
    checkpoint, replace = number(request, "checkpoint"), number(request, "replace")
    if action is FORK and "reword" in request.GET and (place := checkpoints.replaceable(context)) is not None:
        checkpoint, replace = place.checkpoint.pk, place.replace
    call_id = number(request, "call")
    initial: dict[str, Any] = {
        "version": session.version,
        "definition": session.new_definition,
        "checkpoint": checkpoint,
        "number": number(request, "number"),
        "call_id": call_id,
        "assignee": session.assignee,
        "replace": replace,
        "message": "",
        "tool": request.GET.get("tool", ""),
        "entry": number(request, "entry"),
        "decision": request.GET.get("decision", ""),
    }
    if replace is not None:
        text = checkpoints.user_text_at(context.branch, replace)
        initial["message"] = context.mask.message(Message.Role.USER, text)
    if action in repair.FORMS:
        initial |= repairs.initial(context, action, request.GET)
    if call_id is not None:
        approval = Approval.objects.filter(call_id=call_id, call__branch__session=session).first()
        decides = approval is not None and context.actor.may(APPROVE.permission)
        initial["fingerprint"] = approvals.shown_fingerprint(approval) if approval and decides else ""
    return initial


def _render(request: Request, form: ActionForm, *, status: int = 200, moved: bool = False) -> HttpResponse:
    """The dialog as a page; with htmx, only the dialog. After a refusal it shows the session as it is now."""
    context, action = form.context, form.action
    session = context.session_row
    try:
        details = form.read_details()
    except Http404:
        if not form.is_bound:
            raise
        # The form keeps what was typed, and says itself that there is no such row.
        form.details, details = "", {}
    continues = isinstance(form, ContinuingForm) and form.button_if_changed
    refusal = form.why_not(details)
    closed = bool(refusal) and (moved or action in calls.FORMS)
    values = {
        "session": context.session,
        "branch": context.branch,
        "form": form,
        "action": action,
        "explanation": context.mask.text(action.explain(session)),
        "agent_problem": agent_cannot_run(session),
        "refusal": refusal,
        "closed": closed,
        "typed": _typed_texts(form, details) if closed else (),
        "queue": context.queue,
        "moved": moved,
        "last_events": _last_events(context) if moved else (),
        "back": request.POST.get("back", request.GET.get("back", "")),
        "now": context.now,
        "changes": changes_of(context) if continues else None,
        **details,
    }
    if moved:
        # What was typed stays; the dialog shows the session as it is now, and sending it again decides about that.
        typed = request.POST.copy()
        typed["version"] = str(session.version)
        typed["definition"] = session.new_definition
        if "fingerprint" in typed and details.get("card") is not None:
            typed["fingerprint"] = details["card"].fingerprint
        form.data = typed
    template = "session/dialog.html#dialog" if wants_part(request) else "session/dialog.html"
    return render_page(request, template, values, status=status)


def _typed_texts(form: ActionForm, details: dict[str, Any]) -> list[tuple[str, str]]:
    """The texts that the person had typed into a form that is not offered any more, each with its label.

    Those of edited arguments come first, as on the form.
    """
    card = details.get("card")
    arguments = details.get("fields") or (card.fields if card is not None else ())
    fields = [field for field in form.visible_fields() if isinstance(field.field, CharField)]
    texts = [(str(field.label), str(field.data)) for field in fields if field.data]
    return edited_texts(arguments, form.data) + texts


def _last_events(context: SessionContext) -> list[Event]:
    """What was done last, for a person whose page is out of date: who did it, and when. One query."""
    newest = Event.objects.filter(session=context.session).order_by("-position")[:LAST_EVENTS]
    return context.mask.rows(list(newest)[::-1])


@staff_page
@require_GET
def keys(request: Request) -> HttpResponse:
    """The keyboard help, as a page."""
    part = wants_part(request)
    return render_page(request, "desk/keys.html#help" if part else "desk/keys.html", {"part": part})
