"""The approvals that wait for a person, on the present branch of a session that waits."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.db.models import F, Q, QuerySet

from sessions_app.access.masking import Mask
from sessions_app.desk.pages import earlier_effects
from sessions_app.desk.pages.arguments import Field, fields
from sessions_app.desk.pages.earlier_effects import Earlier
from sessions_app.desk.pages.values import Shown, show
from sessions_app.models import Approval, CallStatus, RegisteredAgent, Session, Status, ToolCall

PAGE = 50


@dataclass(frozen=True, slots=True)
class Repeated:
    """The same call on a tail that was left behind. ``result`` is None where it has none that could be used again."""

    call: ToolCall
    result: Shown | None

    @property
    def on_record(self) -> bool:
        return self.result is not None


@dataclass(frozen=True, slots=True)
class Card:
    """An open approval, with all that is needed to decide it."""

    approval: Approval
    session: Session
    agent_title: str
    effect: str
    description: str
    fields: list[Field]
    editable: bool
    repeats: Repeated | None = None
    earlier: Earlier = field(default_factory=Earlier)


@dataclass(frozen=True, slots=True)
class Page:
    cards: list[Card]
    next: int | None


def waiting(now: datetime) -> QuerySet[Approval]:
    """Open approvals that still can be given."""
    return Approval.objects.filter(
        Q(expires_at=None) | Q(expires_at__gt=now),
        decision="",
        call__branch=F("session__branch"),
        session__status__in=(Status.WAITING, Status.PAUSED),
    )


def number(now: datetime) -> int:
    return waiting(now).count()


def page(
    now: datetime, *, after: int | None = None, tool: str = "", limit: int = PAGE, mask: Mask | None = None
) -> Page:
    """The approvals asked first. At most four queries. ``mask`` is what is configured if not given."""
    mask = mask or Mask.configured()
    rows = waiting(now).select_related("call", "session__branch", "repeats__branch").order_by("pk")
    if after is not None:
        rows = rows.filter(pk__gt=after)
    if tool:
        rows = rows.filter(call__tool=tool)
    found = [masked(approval, mask) for approval in rows[: limit + 1]]
    for approval in found:
        mask.row(approval.call)
        mask.row(approval.session)
    agents = {
        agent.key: agent for agent in RegisteredAgent.objects.filter(key__in={a.session.agent for a in found})
    }
    earlier = earlier_effects.of_requests(found[:limit], mask)
    return Page(
        [
            card(approval, agents.get(approval.session.agent), earlier=earlier[approval.pk])
            for approval in found[:limit]
        ],
        found[limit - 1].pk if len(found) > limit else None,
    )


def card(
    approval: Approval,
    agent: RegisteredAgent | None,
    typed: dict[str, str] | None = None,
    *,
    earlier: Earlier | None = None,
) -> Card:
    """An approval with the fields to edit its arguments. Reads ``approval.call`` and ``approval.session``."""
    tool = tool_of(agent, approval.call.tool)
    schema: dict[str, Any] = tool.get("parameters") or {}
    return Card(
        approval=approval,
        session=approval.session,
        agent_title=agent.title if agent else approval.session.agent,
        effect=str((tool.get("policy") or {}).get("effect") or ""),
        description=str(tool.get("description") or ""),
        fields=fields(approval.arguments, schema, typed, edited=approval.edited),
        editable=bool(tool),
        repeats=_repeated(approval.repeats) if approval.repeats is not None else None,
        earlier=earlier or Earlier(),
    )


def _repeated(call: ToolCall) -> Repeated:
    return Repeated(call, show(call.result) if call.status == CallStatus.DONE else None)


def masked(approval: Approval, mask: Mask) -> Approval:
    """With what is hidden of it, and of the call that it repeats, hidden."""
    if approval.repeats is not None:
        mask.row(approval.repeats)
    return mask.row(approval)


def tool_of(agent: RegisteredAgent | None, name: str) -> dict[str, Any]:
    """What the agent's workers published of a tool; {} if nothing."""
    return next((tool for tool in (agent.tools if agent else []) if tool.get("name") == name), {})
