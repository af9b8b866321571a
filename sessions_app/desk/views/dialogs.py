"""The dialog of an action on a session: one view for all of them, driven by the action's declaration and its form.

GET shows what will happen, and asks for what is needed. POST does it; if it is refused, the same dialog comes back with
the reason, the status of the refusal, and all that was typed.
"""

from typing import Any
from uuid import UUID

from django.contrib import messages
from django.http import Http404, HttpResponse
from django.shortcuts import redirect
from django.utils import timezone
from django.views.decorators.http import require_GET, require_http_methods

from sessions_app.access.errors import ActionError, Moved
from sessions_app.access.masking import Mask
from sessions_app.access.roles import Actor
from sessions_app.action_list import ACTIONS, NOT_ALLOWED, UNDO, Action
from sessions_app.desk.context import Request, desk, find, number, page, queue_of, session_url, wants_part
from sessions_app.desk.forms import form_of, repair
from sessions_app.desk.forms.session import ActionForm, CallForm, CheckpointForm, ForkForm
from sessions_app.desk.forms.start import StartForm
from sessions_app.desk.pages import approvals, earlier_effects
from sessions_app.desk.pages.arguments import PREFIX
from sessions_app.desk.pages.session import checkpoints, consequences, discarded, repairs
from sessions_app.models import (
    Approval,
    Branch,
    Checkpoint,
    RegisteredAgent,
    Session,
    StaffPermission,
    ToolCall,
)


@desk
@require_http_methods(["GET", "POST"])
def start(request: Request) -> HttpResponse:
    """Start a session."""
    actor = Actor.of(request.user)
    form = StartForm(
        request.POST if request.method == "POST" else None, initial={"agent": request.GET.get("agent")}
    )
    status = 200
    if request.method == "POST":
        status = 400
        if form.is_valid():
            try:
                session = form.run(actor)
            except ActionError as error:
                form.add_error(None, str(error))
                status = error.status
            else:
                messages.success(request, "Started. A worker takes it in a moment.")
                return redirect("session", session.pk)
    context = {"form": form, "agents": form.agents, "may_start": actor.may(StaffPermission.START)}
    return page(request, "desk/start.html", context, status=status)


@desk
@require_http_methods(["GET", "POST"])
def dialog(request: Request, session_id: UUID, name: str) -> HttpResponse:
    """The dialog of one action."""
    action = ACTIONS.get(name)
    form_class = form_of(action) if action is not None else None
    if action is None or form_class is None:
        raise Http404("There is no such action.")
    session, branch = find(session_id)
    if request.method == "GET":
        initial = _initial(request, action, session, branch)
        return _render(request, branch, form_class(action=action, session=session, initial=initial))
    form = form_class(request.POST, action=action, session=session)
    if not form.is_valid():
        return _render(request, branch, form, status=400)
    try:
        result = form.run(Actor.of(request.user))
    except ActionError as error:
        form.add_error(None, str(error))
        return _render(request, branch, form, status=error.status, moved=isinstance(error, Moved))
    messages.success(request, action.done)
    if request.POST.get("back") == "approvals":
        return redirect("approvals")
    return redirect(session_url(result, queue_of(request)))


def _initial(request: Request, action: Action, session: Session, branch: Branch) -> dict[str, Any]:
    """What the fields hold at first: what the address names, and what stands in the session now."""
    replace = number(request.GET.get("replace"))
    call_id = number(request.GET.get("call"))
    initial: dict[str, Any] = {
        "version": session.version,
        "checkpoint": number(request.GET.get("checkpoint")),
        "call_id": call_id,
        "assignee": session.assignee,
        "replace": replace,
        "message": "",
        "tool": request.GET.get("tool", ""),
    }
    if replace is not None:
        initial["message"] = Mask.configured().text(checkpoints.words_at(branch, replace))
    if action in repair.FORMS:
        initial |= repairs.initial(branch, action.key, request.GET)
    if call_id is not None:
        approval = Approval.objects.filter(call_id=call_id, call__branch__session=session).first()
        initial["fingerprint"] = approval.fingerprint if approval else ""
    return initial


def _render(
    request: Request, branch: Branch, form: ActionForm, *, status: int = 200, moved: bool = False
) -> HttpResponse:
    """The dialog as a page; with htmx, only the dialog. After a refusal it shows the session as it is now."""
    session, action = form.session, form.action
    context: dict[str, Any] = {
        "session": session,
        "branch": branch,
        "form": form,
        "action": action,
        "title": action.title,
        "explanation": action.explain(session),
        "queue": queue_of(request),
        "moved": moved,
        "back": request.POST.get("back", ""),
    }
    rows: dict[str, Any] = {}
    if isinstance(form, CheckpointForm):
        checkpoint = _checkpoint(session, branch, form.chosen)
        context |= _about_checkpoint(session, branch, form, checkpoint)
        rows = {"checkpoint": checkpoint}
    elif isinstance(form, CallForm):
        context |= _about_call(request, session, form)
        rows = {"call": context["call"], "approval": context["approval"]}
    if form.details in ("session/_dialog_resume.html", "session/_dialog_decide.html"):
        context["consequences"] = consequences.of_resume(session, branch)
    if action is UNDO and branch.undo_to is not None and discarded.made_by_repair(branch):
        context["title"] = form.button = "Undo the repair"
    context["refusal"] = _why_not(request, form, **rows)
    if moved:
        # What was typed stays; the dialog shows the session as it is now, and sending it again decides about that.
        typed = request.POST.copy()
        typed["version"] = str(session.version)
        form.data = typed
    part = wants_part(request) and request.method == "GET"
    template = "session/dialog.html#dialog" if part else "session/dialog.html"
    return page(request, template, context, status=status)


def _why_not(request: Request, form: ActionForm, **rows: Any) -> str:
    """Why this person cannot send the form now, "" if they can."""
    action = form.required_action
    if not Actor.of(request.user).may(action.permission):
        return NOT_ALLOWED
    return action.impossible(form.session, now=timezone.now(), **rows) or form.impossible


def _checkpoint(session: Session, branch: Branch, pk: int | None) -> Checkpoint | None:
    if pk is None:
        return None
    checkpoint = checkpoints.find(session, branch, pk)
    if checkpoint is None:
        raise Http404("This session has no such checkpoint.")
    return checkpoint


def _about_checkpoint(
    session: Session, branch: Branch, form: CheckpointForm, checkpoint: Checkpoint | None
) -> dict[str, Any]:
    """The chosen checkpoint with what leaving from it does; without one, the checkpoints to choose from."""
    forks = isinstance(form, ForkForm)
    if checkpoint is None:
        suggestions = checkpoints.suggestions(session, branch)
        if forks and (message := checkpoints.replaceable(branch)):
            suggestions = [*suggestions, message]
        return {"suggestions": suggestions, "newest": checkpoints.page(branch, limit=15).checkpoints}
    about: dict[str, Any] = {"checkpoint": checkpoint}
    if not forks:
        about["consequences"] = consequences.of_rewind(session, branch, checkpoint)
    return about


def _about_call(request: Request, session: Session, form: CallForm) -> dict[str, Any]:
    """The call, masked for showing, with its approval and the card to decide it."""
    call_id = str(form["call_id"].value() or "")
    calls = ToolCall.objects.filter(branch__session=session).select_related("approval")
    call = calls.filter(pk=int(call_id)).first() if call_id.isdecimal() else None
    if call is None:
        raise Http404("This session has no such call.")
    mask = Mask.configured()
    mask.row(call)
    agent = RegisteredAgent.objects.filter(key=session.agent).first()
    approval = getattr(call, "approval", None)
    card = None
    if approval is not None:
        approvals.masked(approval, mask)
        approval.call, approval.session = call, session
        typed = {name: str(value) for name, value in request.POST.items() if name.startswith(PREFIX)}
        earlier = earlier_effects.of_requests([approval], mask)[approval.pk]
        card = approvals.card(approval, agent, typed, earlier=earlier)
    return {"call": call, "card": card, "approval": approval}


@desk
@require_GET
def keys(request: Request) -> HttpResponse:
    """The keyboard help, as a page."""
    return page(request, "desk/keys.html#help" if wants_part(request) else "desk/keys.html", {})
