"""The top of a session's page: what it is doing, what it needs from a person, and which of its buttons work."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from django.db.models import Q, QuerySet
from django.utils.html import format_html

from agentstate.durable.run_end import late_sentence
from agentstate.names import OPEN_CALL_STATES
from sessions_app.access.action import Action
from sessions_app.access.availability import agent_cannot_run
from sessions_app.action_list import ACTIONS, APPROVE, DECIDE, MESSAGE, PAUSE, RELEASE, RESUME, REWIND
from sessions_app.desk.pages.advice import AGENT_CHANGED, TRY_AGAIN, Advice, who_may_release
from sessions_app.desk.pages.causes import advice_for
from sessions_app.desk.pages.session.context import SessionContext
from sessions_app.desk.pages.session.stopped import why_paused
from sessions_app.desk.pages.summary import formats_of, published_tool, summary
from sessions_app.finding import stuck
from sessions_app.models import (
    STOPPED,
    CallStatus,
    Phase,
    RegisteredAgent,
    Session,
    Status,
    StopRequest,
    ToolCall,
    WaitingFor,
)
from sessions_app.models.compiled import compiled
from sessions_app.times import expires, since_when
from sessions_app.wording import arguments, countdown, cut_short

CANNOT_CONTINUE = "It cannot continue."
SEE_WORKERS = "See the workers"


@dataclass(frozen=True, slots=True)
class Button:
    """``why_not`` is "" where the button works. ``anchor`` is the id of the element that it leads to, if it does.

    parameters: those of the address of its dialog. ``page``: the name of the page that it leads to, if it does.
    """

    action: Action | None
    label: str
    why_not: str = ""
    anchor: str = ""
    primary: bool = False
    parameters: Mapping[str, str] = field(default_factory=dict, hash=False)
    page: str = ""


@dataclass(frozen=True, slots=True)
class Banner:
    """What a person should know first. Where ``text`` names times, it is safe HTML with elements for them.

    ``anchor`` is the id of the element that it is about, if there is one. ``also`` says what keeps the session from
    continuing as it was, in two parts like the banner itself. ``shows_changes``: it leads to what changed in the agent.
    The button that helps is the first of the header's.
    """

    tone: str
    subject: str
    text: str
    anchor: str = ""
    also: tuple[str, str] = ("", "")
    shows_changes: bool = False


@dataclass(frozen=True, slots=True)
class Header:
    """``open_calls`` are the calls that need a person, with their approvals, in the order of their positions.

    working: what a session does that should move by itself, in the words of its label; "" for any other.
    """

    tone: str
    label: str
    working: str
    agent: RegisteredAgent | None
    banner: Banner | None
    buttons: tuple[Button, ...]
    open_calls: list[ToolCall]
    new_definition: str
    agent_problem: str
    tokens: int


def header(context: SessionContext) -> Header:
    """One query for the agent, and one more each where calls are open, for a failed and for a paused session."""
    session, now = context.session, context.now
    failure_advice = advice_for(session)
    if failure_advice is not None:
        failure_advice = failure_advice.for_actor(context.actor)
    tone, label = stuck.status_label(session, now)
    agent = session.registered_agent
    open_calls = context.mask.rows(_open_calls(context.branch.pk)) if context.has_open_calls else []
    return Header(
        tone=tone,
        label=label,
        working=_working(session, label),
        agent=agent,
        banner=_with_agent(
            _with_remedy(_banner(context, open_calls, failure_advice), context), session, open_calls
        ),
        buttons=tuple(_buttons(context, open_calls, failure_advice)),
        open_calls=open_calls,
        new_definition=session.new_definition,
        agent_problem=agent_cannot_run(session),
        tokens=sum(session.totals.get(name, 0) for name in ("prompt_tokens", "completion_tokens")),
    )


@compiled
def _open_calls(branch_id: int) -> QuerySet[ToolCall]:
    return (
        ToolCall.objects.filter(branch=branch_id, status__in=OPEN_CALL_STATES)  # a small index has these
        .filter(Q(status=CallStatus.DOUBT) | Q(status=CallStatus.PLANNED, approval__decision=""))
        .select_related("approval__repeats__branch")
        .defer("result", "state")
        .order_by("position")
    )


def _working(session: Session, label: str) -> str:
    if session.status == Status.QUEUED and label == "Queued":
        return "Queued: waiting for a worker"
    return label if session.status in (Status.RUNNING, Status.QUEUED) else ""


def _buttons(
    context: SessionContext, open_calls: list[ToolCall], failure_advice: Advice | None
) -> list[Button]:
    session, why_not = context.session, context.why_not
    buttons = []
    for action in ACTIONS.values():
        # Few sessions were ever rewound: on the others a disabled Undo would only distract.
        if not action.label or (action.only_if_possible and action.impossible(session, now=context.now)):
            continue
        if action is RESUME and (doubts := _in_doubt(session, open_calls)):
            if session.status == Status.PAUSED or doubts > 1:
                buttons.append(_decide_and_resume(context, doubts))
            continue
        label = TRY_AGAIN if action is RESUME and session.is_failed else action.label
        buttons.append(Button(action, label, why_not.of(action)))
    primary = _primary(context, open_calls, failure_advice)
    if primary is None:
        return buttons
    if primary.action is RESUME and session.new_definition and session.status != Status.RUNNING:
        primary = replace(primary, label=f"{primary.label} with the new definition")
    rest = [button for button in buttons if button.action is not primary.action]
    same = next((button for button in buttons if button.action is primary.action), None)
    if same is not None:
        primary = replace(primary, why_not=same.why_not)
    return [primary, *rest]


def _in_doubt(session: Session, open_calls: list[ToolCall]) -> int:
    """How many calls in doubt are decided before the session can be resumed."""
    stopped = session.status in STOPPED
    return sum(call.status == CallStatus.DOUBT for call in open_calls) if stopped else 0


def _decide_and_resume(context: SessionContext, doubts: int) -> Button:
    """The button that decides all calls in doubt in one dialog. A single one is decided at its call, which resumes."""
    label = "Decide and resume" if doubts == 1 else f"Decide all {doubts} calls"
    lacking = context.why_not.of(DECIDE) or RESUME.lacking(context.actor)
    return Button(RESUME, label, lacking or agent_cannot_run(context.session))


def _primary(
    context: SessionContext, open_calls: list[ToolCall], failure_advice: Advice | None
) -> Button | None:
    """The button for what a person most likely does next."""
    session, now, why_not = context.session, context.now, context.why_not
    if open_calls and session.status in STOPPED:
        if open_calls[0].status == CallStatus.DOUBT:
            label = "See the call" if why_not.of(DECIDE) else "Decide the call"
        else:
            label = "See the call" if why_not.of(APPROVE) else "Review approval"
        return Button(None, label, anchor=f"c{open_calls[0].position}", primary=True)
    match session.status:
        case Status.IDLE | Status.WAITING if (
            failure_advice is not None
            and failure_advice.action is not None
            and failure_advice.action is not RESUME
        ):
            action = failure_advice.action
            parameters = failure_advice.parameters
            return Button(
                action, failure_advice.label, why_not.of(action), primary=True, parameters=parameters
            )
        case Status.PAUSED | Status.WAITING:
            return Button(RESUME, RESUME.label, primary=True)
        case _ if session.is_failed:
            return Button(RESUME, TRY_AGAIN, primary=True)
        case Status.IDLE if session.phase == Phase.DONE:
            if why_not.of(MESSAGE):
                return Button(MESSAGE, MESSAGE.title, why_not.of(MESSAGE))
            return Button(None, MESSAGE.title, anchor="say", primary=True)
        case Status.QUEUED if session.next_run_at is not None and session.next_run_at > now:
            return Button(RESUME, "Try now", primary=True)
        case Status.RUNNING if stuck.why_not_moving(session, now):
            return Button(RELEASE, RELEASE.title, why_not.of(RELEASE), primary=True)
        case Status.RUNNING if session.stop_request == StopRequest.PAUSE:
            return Button(RESUME, "Keep running", primary=True)
        case Status.QUEUED if stuck.why_not_moving(session, now):
            return Button(None, SEE_WORKERS, page="workers", primary=True)
        case Status.RUNNING | Status.QUEUED:
            return Button(PAUSE, PAUSE.label)
        case Status.CANCELLED:
            return Button(REWIND, REWIND.label, primary=True)
    return None


def _banner(
    context: SessionContext, open_calls: list[ToolCall], failure_advice: Advice | None
) -> Banner | None:
    session, now = context.session, context.now
    if open_calls and session.status in STOPPED:
        return _about_call(context, open_calls)
    match session.status:
        case Status.WAITING if session.waiting_for == WaitingFor.RETRIES:
            return Banner("error", "Gave up retrying.", session.why or "The last attempts made no progress.")
        case Status.WAITING:
            return Banner("doubt", "Needs a decision.", session.why)
        case Status.RUNNING if session.lease_expires_at is not None and session.lease_expires_at < now:
            text = format_html(
                "The lease of {} ran out {}. The next sweep hands it to another worker.",
                session.worker,
                since_when(session.lease_expires_at, now),
            )
            return Banner("error", "Its worker is lost.", text)
        case Status.QUEUED if session.next_run_at is not None and session.next_run_at > now:
            wait = countdown(session.next_run_at, now)
            return Banner(
                "waiting", f"Attempt {session.attempt} failed; the next begins in {wait}.", session.why
            )
        case Status.PAUSED if session.at_breakpoint is not None:
            return Banner("paused", "Stopped.", f"{session.why} Resume continues past it.")
        case Status.PAUSED:
            return Banner("paused", *why_paused(context))
        case Status.CANCELLED:
            return Banner("idle", "Cancelled.", session.why)
    if why := stuck.why_not_moving(session, now):
        return Banner("error", "Stuck.", why)
    if session.stop_request:
        return Banner("paused", f"Asked to {session.stop_request}.", "It stops when the current call ends.")
    if session.phase == Phase.ERROR:
        # The error itself stands at its step, once.
        return (
            Banner("error", f"Failed: {failure_advice.what}.", failure_advice.text)
            if failure_advice is not None
            else None
        )
    if cut := cut_short(session):
        return Banner("waiting", f"{cut[0]}.", cut[1])
    return None


def _with_remedy(banner: Banner | None, context: SessionContext) -> Banner | None:
    """Who may not release a session that runs and does not move is told who may; for others it is the first button."""
    if banner is None or not stuck.why_not_moving(context.session, context.now):
        return banner
    remedy = who_may_release(context.session, context.actor)
    return replace(banner, text=format_html("{} {}", banner.text, remedy)) if remedy else banner


def _with_agent(banner: Banner | None, session: Session, open_calls: Sequence[ToolCall]) -> Banner | None:
    """What is to be known of the agent, in the same banner: that it cannot run, or has changed."""
    is_changed = session.waiting_for == WaitingFor.CHANGED
    if problem := agent_cannot_run(session):
        if banner is None or is_changed:
            return Banner("error", CANNOT_CONTINUE, problem)
        is_said = problem in banner.text
        return replace(banner, tone="error", also=("", "") if is_said else (CANNOT_CONTINUE, problem))
    if not session.new_definition or banner is None:
        return banner
    if is_changed:
        text = "since this session last ran. It continues with the new definition once it is resumed."
        return Banner("doubt", AGENT_CHANGED, text, shows_changes=True)
    # A call that waits says it where it is decided, and the advice says it of a session that has failed.
    if open_calls or session.status not in (*STOPPED, Status.QUEUED):
        return replace(banner, shows_changes=session.is_failed)
    text = "since this session last ran. It continues with the new definition."
    return replace(banner, also=(AGENT_CHANGED, text), shows_changes=True)


def _about_call(context: SessionContext, open_calls: list[ToolCall]) -> Banner:
    now = context.now
    call, more = open_calls[0], len(open_calls) - 1
    others = f" {more} more {'waits' if more == 1 else 'wait'} too." if more else ""
    anchor = f"c{call.position}"
    if call.status == CallStatus.DOUBT:
        known: str = late_sentence(call.tool, context.session.why)
        if not known and call.started_at:
            known = format_html(
                "It was started {} and never reported back.", since_when(call.started_at, now)
            )
        text = format_html("{} Check whether it took effect, then record the outcome.{}", known, others)
        return Banner("doubt", f"{call.tool} is in doubt.", text, anchor)
    approval = call.approval
    text = format_html(
        "{} · Requested {}{}{}.{}",
        _what(context, call),
        since_when(approval.asked_at, now),
        ", " if approval.expires_at is not None else "",
        expires(approval.expires_at, now),
        others,
    )
    return Banner("waiting", f"{call.tool} needs approval:", text, anchor)


def _what(context: SessionContext, call: ToolCall) -> str:
    """What the call does, if its tool's policy says it for people; else its arguments."""
    agent, asked_for = context.session.registered_agent, call.approval.arguments
    if (published_tool(agent, call.tool, context.mask).get("policy") or {}).get("summary"):
        return summary(agent, call.tool, asked_for, context.mask)
    return arguments(asked_for, 90, formats_of(agent, call.tool)).rstrip(".")
