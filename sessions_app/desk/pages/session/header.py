"""The top of a session's page: what it is doing, what it needs from a person, and which buttons work."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import Q

from sessions_app.access import availability
from sessions_app.access.masking import Mask
from sessions_app.access.roles import Actor
from sessions_app.models import (
    CallStatus,
    Phase,
    RegisteredAgent,
    Session,
    Status,
    StopRequest,
    ToolCall,
    WaitingFor,
)
from sessions_app.wording import age, arguments, condition, duration

LABELS = {
    "resume": "Resume",
    "pause": "Pause",
    "rewind": "Rewind",
    "undo": "Undo",
    "fork": "Fork",
    "cancel": "Cancel",
}
NOT_ALLOWED = "Your role does not allow this."


@dataclass(frozen=True, slots=True)
class Button:
    """``why_not`` is empty where the button works. ``anchor`` is set where it leads to a place on the page."""

    act: str
    label: str
    why_not: str = ""
    anchor: str = ""
    first: bool = False


@dataclass(frozen=True, slots=True)
class Banner:
    tone: str
    subject: str
    text: str
    anchor: str = ""


@dataclass(frozen=True, slots=True)
class Header:
    tone: str
    label: str
    since: str
    agent: RegisteredAgent | None
    banner: Banner | None
    buttons: list[Button]
    open_calls: list[ToolCall]
    changed_definition: bool
    tokens: int

    @property
    def may(self) -> dict[str, str]:
        """Why each act is impossible, by act; "" where it is possible."""
        return {button.act: button.why_not for button in self.buttons}


def header(session: Session, actor: Actor, now: datetime, mask: Mask) -> Header:
    """Two queries: the agent, and the calls that wait for a person."""
    tone, label = condition(session, now)
    agent = RegisteredAgent.objects.filter(key=session.agent).first()
    waiting = mask.rows(
        ToolCall.objects.filter(branch=session.branch)
        .filter(Q(status=CallStatus.DOUBT) | Q(status=CallStatus.PLANNED, approval__decision=""))
        .select_related("approval__repeats__branch")
        .defer("result", "state")
        .order_by("position")
    )
    return Header(
        tone=tone,
        label=label,
        since=age(session.phase_since, now),
        agent=agent,
        banner=_banner(session, agent, waiting, now),
        buttons=_buttons(session, actor, waiting, now),
        open_calls=waiting,
        changed_definition=bool(
            agent and agent.definition and session.definition and agent.definition != session.definition
        ),
        tokens=sum(session.totals.get(name, 0) for name in ("prompt_tokens", "completion_tokens")),
    )


def why_not(session: Session, actor: Actor, act: str, **facts: Any) -> str:
    """Why this person cannot do this now, "" if they can."""
    if not actor.may(act):
        return NOT_ALLOWED
    return availability.why_not(session, act, **facts) or ""


def _buttons(session: Session, actor: Actor, waiting: list[ToolCall], now: datetime) -> list[Button]:
    rule = {"resume": "decide"} if _in_doubt(session, waiting) else {}
    buttons = [
        Button(act, label, why_not(session, actor, rule.get(act, act), now=now))
        for act, label in LABELS.items()
    ]
    # Most sessions were never rewound: a dead button on each of them would only be noise.
    buttons = [
        button for button in buttons if button.act != "undo" or availability.why_not(session, "undo") is None
    ]
    first = _first(session, waiting, now)
    if first is None:
        return buttons
    rest = [button for button in buttons if button.act != first.act]
    same = next((button for button in buttons if button.act == first.act), None)
    if same is not None:
        first = Button(first.act, first.label, same.why_not, first=True)
    return [first, *rest]


def _in_doubt(session: Session, waiting: list[ToolCall]) -> bool:
    """Whether resuming asks for decisions on calls in doubt first."""
    stopped = session.status in (Status.WAITING, Status.PAUSED)
    return stopped and any(call.status == CallStatus.DOUBT for call in waiting)


def _first(session: Session, waiting: list[ToolCall], now: datetime) -> Button | None:
    """The one thing that most likely is to be done next."""
    if waiting and session.status in (Status.WAITING, Status.PAUSED):
        label = "Decide the call" if waiting[0].status == CallStatus.DOUBT else "Review approval"
        return Button("review", label, anchor=f"c{waiting[0].position}", first=True)
    match session.status:
        case Status.PAUSED | Status.WAITING:
            return Button("resume", "Resume", first=True)
        case Status.IDLE if session.phase == Phase.ERROR:
            return Button("resume", "Try again", first=True)
        case Status.IDLE if session.phase == Phase.DONE:
            return Button("reply", "Send a message", anchor="say", first=True)
        case Status.QUEUED if session.next_run_at is not None and session.next_run_at > now:
            return Button("resume", "Try now", first=True)
        case Status.RUNNING if session.stop_request == StopRequest.PAUSE:
            return Button("resume", "Do not pause", first=True)
        case Status.RUNNING | Status.QUEUED:
            return Button("pause", "Pause", first=True)
        case Status.CANCELLED:
            return Button("rewind", "Rewind", first=True)
    return None


def _banner(
    session: Session, agent: RegisteredAgent | None, waiting: list[ToolCall], now: datetime
) -> Banner | None:
    if waiting and session.status in (Status.WAITING, Status.PAUSED):
        return _about_call(waiting, now)
    match session.status:
        case Status.WAITING if session.waiting_for == WaitingFor.RETRIES:
            return Banner("error", "It gave up.", session.why or "The last attempts made no progress.")
        case Status.WAITING:
            return Banner("doubt", "It needs somebody to look.", session.why)
        case Status.RUNNING if session.lease_expires_at is not None and session.lease_expires_at < now:
            quiet = age(session.lease_expires_at, now)
            return Banner(
                "error",
                "Its worker went quiet.",
                f"The lease of {session.worker} ran out {quiet} ago. The next sweep hands it to another worker.",
            )
        case Status.QUEUED if session.next_run_at is not None and session.next_run_at > now:
            wait = duration(round((session.next_run_at - now).total_seconds()))
            return Banner(
                "waiting", f"Attempt {session.attempt} failed; the next begins in {wait}.", session.why
            )
        case Status.PAUSED:
            return Banner("paused", "Paused.", session.why)
        case Status.CANCELLED:
            return Banner("idle", "Cancelled.", session.why)
    if session.stop_request:
        return Banner(
            "paused", f"Asked to {session.stop_request}.", "It stops as soon as the present call has ended."
        )
    if session.phase == Phase.ERROR:
        return Banner("error", "It failed.", session.error)
    if agent is None:
        return Banner(
            "doubt",
            "Its agent is not registered.",
            f"No worker publishes “{session.agent}”: it cannot run on.",
        )
    return None


def _about_call(waiting: list[ToolCall], now: datetime) -> Banner:
    call, more = waiting[0], len(waiting) - 1
    others = f" {more} more {'waits' if more == 1 else 'wait'} too." if more else ""
    anchor = f"c{call.position}"
    if call.status == CallStatus.DOUBT:
        started = (
            f" It was started {age(call.started_at, now)} ago and never ended." if call.started_at else ""
        )
        return Banner(
            "doubt",
            f"{call.tool} is in doubt.",
            f"Nobody knows whether it took effect.{started}{others}",
            anchor,
        )
    approval = call.approval
    asked = age(approval.asked_at, now)
    lapses = ""
    if approval.expires_at is not None:
        left = (approval.expires_at - now).total_seconds()
        lapses = (
            f", lapses in {duration(left // 60 * 60 if left > 120 else left // 1)}"
            if left > 0
            else ", has lapsed"
        )
    when = "Asked just now" if asked == "just now" else f"Asked {asked} ago"
    return Banner(
        "waiting",
        f"{call.tool} waits for a person:",
        f"{arguments(approval.arguments, 90).rstrip('.')} · {when}{lapses}.{others}",
        anchor,
    )
