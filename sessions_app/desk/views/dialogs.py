"""Acting on a session: one view for all acts.

GET shows what will happen, and asks for what is needed. POST does it; if it is refused, the same page comes back
with the reason, the status of the refusal, and all that was typed.
"""

from typing import Any
from uuid import UUID

from django.contrib import messages
from django.http import Http404, HttpResponse
from django.shortcuts import redirect
from django.views.decorators.http import require_GET, require_http_methods

from sessions_app.access.errors import ActionError, Moved
from sessions_app.access.masking import Mask
from sessions_app.access.roles import Actor
from sessions_app.desk.context import (
    Request,
    desk,
    number,
    queue_of,
    render_page,
    session_context,
    session_url,
    wants_part,
)
from sessions_app.desk.forms.actions import (
    FORMS,
    ActForm,
    ApproveForm,
    CallForm,
    CheckpointForm,
    ForkForm,
    StartForm,
)
from sessions_app.desk.forms.repair import REPAIRS
from sessions_app.desk.pages import approvals
from sessions_app.desk.pages.arguments import PREFIX, WrongValue, read
from sessions_app.desk.pages.session import checkpoints, consequences, discarded, repairs
from sessions_app.desk.pages.session.context import SessionContext
from sessions_app.desk.pages.why_not import WhyNot
from sessions_app.models import Approval, Checkpoint, RegisteredAgent, Session, ToolCall

TITLES = {
    "pause": "Pause",
    "resume": "Resume",
    "cancel": "Cancel",
    "rewind": "Rewind",
    "undo": "Undo the rewind",
    "fork": "Fork",
    "message": "Send a message",
    "assign": "Assign",
    "note": "Note something",
    "release": "Take it from its worker",
    "approve": "Approve a call",
    "reject": "Reject a call",
    "reuse": "Use the recorded result",
    "decide": "Decide a call in doubt",
    "memory": "Change the working memory",
    "state-value": "Change a state value",
    "words": "Replace what the model reads",
    "answer": "Answer for a tool",
    "step": "Do the step by hand",
    "withdraw": "Ask again before a tool runs",
}


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
    context = {"form": form, "agents": form.agents, "why_not": WhyNot(actor)}
    return render_page(request, "desk/start.html", context, status=status)


@desk
@require_http_methods(["GET", "POST"])
def act(request: Request, session_id: UUID, name: str) -> HttpResponse:
    """The page of one act."""
    form_class = FORMS.get(name) or REPAIRS.get(name)
    if form_class is None:
        raise Http404("There is no such act.")
    about = session_context(request, session_id)
    session = about.session_row
    if request.method == "GET":
        return _sheet(request, about, form_class(session=session, initial=_initial(request, about)))
    form = form_class(request.POST, session=session)
    if not form.is_valid():
        return _sheet(request, about, form, status=400)
    try:
        after = _edited(form, request) if isinstance(form, ApproveForm) else form.run(Actor.of(request.user))
    except ActionError as error:
        form.add_error(None, str(error))
        return _sheet(request, about, form, status=error.status, moved=isinstance(error, Moved))
    messages.success(request, form.done)
    if request.POST.get("back") == "approvals":
        return redirect("approvals")
    return redirect(session_url(after, queue_of(request)))


def _edited(form: ApproveForm, request: Request) -> Session:
    """Approve, with the arguments as they stand in the form's fields."""
    data = dict(form.cleaned_data)
    edited: dict[str, Any] | None = None
    if any(name.startswith(PREFIX) for name in request.POST):
        approval = Approval.objects.select_related("call").filter(call_id=data["call_id"]).first()
        agent = RegisteredAgent.objects.filter(key=form.session.agent).first()
        if approval is not None:
            schema = approvals.tool_of(agent, approval.call.tool).get("parameters") or {}
            mask = Mask.none() if "revealed" in request.POST else Mask.configured()
            try:
                edited = read(request.POST, mask.json(approval.arguments), schema)
            except WrongValue as error:
                raise ActionError(str(error)) from None
            edited = mask.restore(edited, approval.arguments)
    return form.perform(
        actor=Actor.of(request.user),
        session_id=form.session.pk,
        expected_version=data.pop("version"),
        edited=edited,
        **data,
    )


def _initial(request: Request, about: SessionContext) -> dict[str, Any]:
    session = about.session_row
    initial: dict[str, Any] = {
        "version": session.version,
        "checkpoint": number(request.GET.get("checkpoint")),
        "call_id": number(request.GET.get("call")),
        "assignee": session.assignee,
        "replace": (replace := number(request.GET.get("replace"))),
        "message": about.mask.text(checkpoints.user_text_at(about.branch, replace))
        if replace is not None
        else "",
        "tool": request.GET.get("tool", ""),
    }
    if request.resolver_match is not None and (name := request.resolver_match.kwargs["name"]) in REPAIRS:
        initial |= repairs.initial(about, name, request.GET)
    if initial["call_id"] is not None:
        approval = Approval.objects.filter(call_id=initial["call_id"], call__branch__session=session).first()
        initial["fingerprint"] = approval.fingerprint if approval else ""
    return initial


def _sheet(
    request: Request,
    about: SessionContext,
    form: ActForm,
    *,
    status: int = 200,
    moved: bool = False,
) -> HttpResponse:
    """The act's page; with htmx, only its sheet. After a refusal the person sees the session as it is now."""
    session = about.session_row
    branch = session.current_branch
    context: dict[str, Any] = {
        "session": about.session,
        "branch": branch,
        "form": form,
        "title": TITLES[form.act],
        "queue": queue_of(request),
        "moved": moved,
        "version_now": session.version,
        "back": request.POST.get("back", ""),
    }
    facts: dict[str, Any] = {}
    if isinstance(form, CheckpointForm):
        facts["checkpoint"] = chosen = _checkpoint(about, form.chosen)
        context |= _about_checkpoint(about, form, chosen)
    elif isinstance(form, CallForm):
        context |= _about_call(request, about, form)
        if form.act == "decide":
            context["consequences"] = consequences.of_resume(about)
        facts = _facts_of(form.rule or form.act, context)
    elif form.act == "resume":
        context["consequences"] = consequences.of_resume(about)
    elif form.act == "undo" and branch.undo_to is not None:
        context["undo_to"] = branch.undo_to
        if discarded.made_by_repair(branch):
            context["title"] = form.button = "Undo the repair"
    context["why_not"] = about.why_not.about(form.rule or form.act, **facts) or form.impossible
    if moved:
        # What was typed stays; what is now is shown beside it, and sending it again is a decision about that.
        typed = request.POST.copy()
        typed["version"] = str(session.version)
        form.data = typed
    part = wants_part(request) and request.method == "GET"
    return render_page(
        request, "session/act.html#sheet" if part else "session/act.html", context, status=status
    )


def _checkpoint(about: SessionContext, pk: int | None) -> Checkpoint | None:
    if pk is None:
        return None
    found = checkpoints.find(about, pk)
    if found is None:
        raise Http404("This session has no such checkpoint.")
    return found


def _about_checkpoint(
    about: SessionContext, form: CheckpointForm, chosen: Checkpoint | None
) -> dict[str, Any]:
    if chosen is None:
        return {
            "suggestions": [
                *checkpoints.suggestions(about),
                *(
                    [other]
                    if isinstance(form, ForkForm) and (other := checkpoints.replaceable(about))
                    else []
                ),
            ],
            "newest": checkpoints.read_page(about, limit=15).checkpoints,
        }
    values: dict[str, Any] = {"checkpoint": chosen}
    if not isinstance(form, ForkForm):
        values["consequences"] = consequences.of_rewind(about, chosen)
    return values


def _about_call(request: Request, about: SessionContext, form: CallForm) -> dict[str, Any]:
    session = about.session
    call_id = form["call_id"].value()
    call = (
        ToolCall.objects.filter(branch__session=session, pk=call_id)
        .select_related("approval__repeats__branch")
        .first()
        if str(call_id or "").isdecimal()
        else None
    )
    if call is None:
        raise Http404("This session has no such call.")
    call = about.mask.row(call)
    agent = RegisteredAgent.objects.filter(key=session.agent).first()
    approval = getattr(call, "approval", None)
    card = None
    if approval is not None:
        approval.call, approval.session = call, session
        typed = {name: str(value) for name, value in request.POST.items() if name.startswith(PREFIX)}
        card = approvals.card(approval, agent, typed)
    return {"call": call, "card": card, "approval": approval}


def _facts_of(act: str, context: dict[str, Any]) -> dict[str, Any]:
    match act:
        case "decide":
            return {"call": context["call"]}
        case "approve" | "reject":
            return {"approval": context["approval"]}
        case _:
            return {}


@desk
@require_GET
def keys(request: Request) -> HttpResponse:
    """The keyboard help, as a page."""
    return render_page(request, "desk/keys.html#help" if wants_part(request) else "desk/keys.html", {})
