"""The dialog of an action on a session: one view for all of them, driven by the action's declaration and its form.

GET shows what will happen, and asks for what is needed. POST does it; if it is refused, the same dialog comes back with
the reason, the status of the refusal, and all that was typed.
"""

from typing import Any
from uuid import UUID

from django.contrib import messages
from django.http import Http404, HttpResponse
from django.shortcuts import redirect
from django.views.decorators.http import require_GET, require_http_methods

from sessions_app.access.availability import agent_cannot_run
from sessions_app.access.roles import Actor
from sessions_app.access.typed import whole_number
from sessions_app.action_list import ACTIONS, APPROVE, NOT_ALLOWED, UNDO, Action
from sessions_app.desk.context import (
    Request,
    desk,
    number,
    queue_of,
    render_page,
    session_context,
    session_url,
    submit,
    wants_part,
)
from sessions_app.desk.forms import form_of, repair
from sessions_app.desk.forms.calls import CallForm
from sessions_app.desk.forms.session import ActionForm, CheckpointForm, ForkForm
from sessions_app.desk.forms.start import StartForm
from sessions_app.desk.pages import approvals, earlier_effects
from sessions_app.desk.pages.arguments import PREFIX
from sessions_app.desk.pages.session import checkpoints, consequences, discarded, repairs
from sessions_app.desk.pages.session.context import SessionContext
from sessions_app.desk.pages.why_not import WhyNot
from sessions_app.models import Approval, Checkpoint, ToolCall


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
        submission = submit(form, lambda: form.run(actor))
        if submission.result is not None:
            messages.success(request, "Started. A worker takes it in a moment.")
            return redirect("session", submission.result.pk)
        status = submission.status
    context = {"form": form, "agents": form.agents, "why_not": WhyNot(actor)}
    return render_page(request, "desk/start.html", context, status=status)


@desk
@require_http_methods(["GET", "POST"])
def dialog(request: Request, session_id: UUID, name: str) -> HttpResponse:
    """The dialog of one action."""
    action = ACTIONS.get(name)
    form_class = form_of(action) if action is not None else None
    if action is None or form_class is None:
        raise Http404("There is no such action.")
    context = session_context(request, session_id)
    session = context.session_row
    if request.method == "GET":
        initial = _initial(request, action, context)
        return _render(request, context, form_class(action=action, session=session, initial=initial))
    form = form_class(request.POST, action=action, session=session)
    submission = submit(form, lambda: form.run(context.actor))
    if submission.result is None:
        return _render(request, context, form, status=submission.status, moved=submission.moved)
    messages.success(request, action.told(submission.result))
    if request.POST.get("back") == "approvals":
        return redirect("approvals")
    return redirect(session_url(submission.result, queue_of(request)))


def _initial(request: Request, action: Action, context: SessionContext) -> dict[str, Any]:
    """What the fields hold at first: what the address names, and what the session holds now."""
    session = context.session_row
    replace = number(request, "replace")
    call_id = number(request, "call")
    initial: dict[str, Any] = {
        "version": session.version,
        "definition": session.new_definition,
        "checkpoint": number(request, "checkpoint"),
        "call_id": call_id,
        "assignee": session.assignee,
        "replace": replace,
        "message": "",
        "tool": request.GET.get("tool", ""),
    }
    if replace is not None:
        initial["message"] = context.mask.text(checkpoints.user_text_at(context.branch, replace))
    if action in repair.FORMS:
        initial |= repairs.initial(context, action.key, request.GET)
    if call_id is not None:
        approval = Approval.objects.filter(call_id=call_id, call__branch__session=session).first()
        decides = approval is not None and context.actor.may(APPROVE.permission)
        initial["fingerprint"] = approvals.shown_fingerprint(approval) if approval and decides else ""
    return initial


def _render(
    request: Request, context: SessionContext, form: ActionForm, *, status: int = 200, moved: bool = False
) -> HttpResponse:
    """The dialog as a page; with htmx, only the dialog. After a refusal it shows the session as it is now."""
    session, action = context.session_row, form.action
    branch = session.current_branch
    values: dict[str, Any] = {
        "session": context.session,
        "branch": context.branch,
        "form": form,
        "action": action,
        "title": action.title,
        "explanation": context.mask.text(action.explain(session)),
        "agent_problem": agent_cannot_run(session),
        "queue": context.queue,
        "moved": moved,
        "back": request.POST.get("back", ""),
    }
    rows: dict[str, Any] = {}
    try:
        if isinstance(form, CheckpointForm):
            checkpoint = _checkpoint(context, form.chosen)
            if checkpoint is None and form.is_bound:
                raise Http404("No checkpoint was chosen.")
            values |= _about_checkpoint(context, form, checkpoint)
            rows = {"checkpoint": checkpoint}
        elif isinstance(form, CallForm):
            values |= _about_call(request, context, form)
            rows = {"call": values["call"], "approval": values["approval"]}
    except Http404:
        if not form.is_bound:
            raise
        # The form keeps what was typed, and says itself that there is no such row.
        form.details = ""
    if form.details in ("session/_dialog_resume.html", "session/_dialog_decide.html"):
        values["consequences"] = consequences.of_resume(context)
        tools = dict.fromkeys(call.tool for call in values["consequences"].doubt)
        samples = [(tool, consequences.earlier_result(context, tool)) for tool in tools]
        values["samples"] = [(tool, sample) for tool, sample in samples if sample]
    if action is UNDO and branch.undo_to is not None and discarded.made_by_repair(branch):
        values["title"] = form.button = "Undo the repair"
    if form.details == "session/_dialog_undo.html":
        values["consequences"] = consequences.of_undo(context)
    values["refusal"] = _why_not(context, form, **rows)
    if moved:
        # What was typed stays; the dialog shows the session as it is now, and sending it again decides about that.
        typed = request.POST.copy()
        typed["version"] = str(session.version)
        typed["definition"] = session.new_definition
        form.data = typed
    part = wants_part(request) and request.method == "GET"
    template = "session/dialog.html#dialog" if part else "session/dialog.html"
    return render_page(request, template, values, status=status)


def _why_not(context: SessionContext, form: ActionForm, **rows: Any) -> str:
    """Why this person cannot send the form now, "" if they can."""
    action = form.required_action
    if not context.actor.may(action.permission):
        return NOT_ALLOWED
    reason = action.impossible(context.session_row, now=context.now, **rows) or form.impossible
    return context.mask.text(reason)


def _checkpoint(context: SessionContext, pk: int | None) -> Checkpoint | None:
    if pk is None:
        return None
    checkpoint = checkpoints.find(context, pk)
    if checkpoint is None:
        raise Http404("This session has no such checkpoint.")
    return checkpoint


def _about_checkpoint(
    context: SessionContext, form: CheckpointForm, checkpoint: Checkpoint | None
) -> dict[str, Any]:
    """The chosen checkpoint with what leaving from it does; without one, the checkpoints to choose from."""
    forks = isinstance(form, ForkForm)
    if checkpoint is None:
        suggestions = checkpoints.suggestions(context)
        if forks and (message := checkpoints.replaceable(context)):
            suggestions = [*suggestions, message]
        return {
            "suggestions": suggestions,
            "newest": checkpoints.read_page(context, limit=15).checkpoints,
        }
    values: dict[str, Any] = {"checkpoint": checkpoint}
    if not forks:
        values["consequences"] = consequences.of_rewind(context, checkpoint)
    return values


def _about_call(request: Request, context: SessionContext, form: CallForm) -> dict[str, Any]:
    """The call with its approval, as they are shown, and the card to decide it."""
    call_id = str(form["call_id"].value() or "")
    calls = ToolCall.objects.filter(branch__session=context.session_row)
    key = whole_number(call_id)
    call = (
        calls.select_related("approval__repeats__branch").filter(pk=key).first() if key is not None else None
    )
    if call is None:
        raise Http404("This session has no such call.")
    call = context.mask.row(call)
    approval = getattr(call, "approval", None)
    card = None
    if approval is not None:
        approval.call, approval.session = call, context.session
        typed = {name: str(value) for name, value in request.POST.items() if name.startswith(PREFIX)}
        earlier = earlier_effects.of_requests([approval], context.mask)[approval.pk]
        card = approvals.card(approval, typed, earlier=earlier)
    return {"call": call, "card": card, "approval": approval}


@desk
@require_GET
def keys(request: Request) -> HttpResponse:
    """The keyboard help, as a page."""
    return render_page(request, "desk/keys.html#help" if wants_part(request) else "desk/keys.html", {})
