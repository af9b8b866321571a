"""Approval requests that wait for a decision, on the present branch of a session that waits or is paused."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.db.models import F, Q, QuerySet
from django.utils.crypto import constant_time_compare, salted_hmac

from sessions_app.access.availability import agent_cannot_run
from sessions_app.access.masking import Mask
from sessions_app.desk.pages import earlier_effects
from sessions_app.desk.pages.arguments import Field, fields
from sessions_app.desk.pages.context import PageContext
from sessions_app.desk.pages.earlier_effects import Earlier, Request
from sessions_app.desk.pages.summary import summary, tool_of
from sessions_app.desk.pages.values import ReadableValue, readable
from sessions_app.finding.counting import Count, count_up_to, digest
from sessions_app.models import Approval, CallStatus, RegisteredAgent, Session, Status, ToolCall

PAGE = 50


@dataclass(frozen=True, slots=True)
class RepeatedCall:
    """The same call on a discarded branch. ``result`` is None where it has none that could be used again."""

    call: ToolCall
    result: ReadableValue | None

    @property
    def has_result(self) -> bool:
        return self.result is not None


@dataclass(frozen=True, slots=True)
class Card:
    """An open approval, with all that is needed to decide it.

    summary: what the call does, with the arguments that were asked for or that a person sent before.
    fingerprint: for who may decide it only.
    agent_problem: why the session's agent cannot run, "" if it can: the call can then be rejected, but not approved.
    new_definition: the agent's definition, if it has changed since the session last ran.
    """

    approval: Approval
    call: ToolCall
    fingerprint: str
    session: Session
    agent_title: str
    summary: str
    effect: str
    fields: list[Field]
    editable: bool
    agent_problem: str
    new_definition: str
    repeats: RepeatedCall | None = None
    earlier: Earlier = field(default_factory=Earlier)


@dataclass(frozen=True, slots=True)
class ApprovalsPage:
    """``next`` is the ``after`` of the next page, None on the last."""

    cards: list[Card]
    next: int | None


def open_approvals(now: datetime) -> QuerySet[Approval]:
    """Those that a person can still give."""
    return Approval.objects.filter(
        Q(expires_at=None) | Q(expires_at__gt=now),
        decision="",
        call__branch=F("session__branch"),
        session__status__in=(Status.WAITING, Status.PAUSED),
    )


def count_open(now: datetime) -> Count:
    """How many there are, up to `counting.MOST`. One query."""
    return count_up_to(open_approvals(now))


def read_page(
    context: PageContext, *, after: int | None = None, tool: str = "", limit: int = PAGE
) -> ApprovalsPage:
    """The oldest open approvals after the one with the key ``after``. At most five queries."""
    rows = _page_rows(context.now, after, tool).select_related("call", "session__branch", "repeats__branch")
    approvals = context.mask.rows(rows[: limit + 1])
    keys = {approval.session.agent for approval in approvals}
    agents = {agent.key: agent for agent in RegisteredAgent.objects.filter(key__in=keys)}
    for approval in approvals:
        approval.session.registered_agent = agents.get(approval.session.agent)
    requests = [Request(approval, approval.call, approval.session) for approval in approvals[:limit]]
    return ApprovalsPage(
        cards(requests, context.mask),
        approvals[limit - 1].pk if len(approvals) > limit else None,
    )


def mark(now: datetime, *, after: int | None, tool: str) -> str:
    """Names what a page shows: it changes when an approval of the page, or of the page after it, comes or goes.

    One query.
    """
    keys = _page_rows(now, after, tool).values_list("pk", flat=True)
    return digest(keys[: PAGE + 1])


def _page_rows(now: datetime, after: int | None, tool: str) -> QuerySet[Approval]:
    rows = open_approvals(now).order_by("pk")
    if after is not None:
        rows = rows.filter(pk__gt=after)
    return rows.filter(call__tool=tool) if tool else rows


def cards(requests: Sequence[Request], mask: Mask, typed: Mapping[str, str] | None = None) -> list[Card]:
    """The requests with the fields to edit their arguments, which hold what was typed. At most three queries.

    Reads the registered agent of their sessions, and ``approval.repeats`` with its branch.
    """
    earlier = earlier_effects.of_requests(requests, mask)
    return [_card(request, earlier[request.approval.pk], typed) for request in requests]


def _card(request: Request, earlier: Earlier, typed: Mapping[str, str] | None) -> Card:
    approval, session = request.approval, request.session
    agent = session.registered_agent
    tool = tool_of(agent, request.call.tool)
    schema: dict[str, Any] = tool.get("parameters") or {}
    arguments = approval.arguments if approval.edited is None else approval.edited
    return Card(
        approval=approval,
        call=request.call,
        fingerprint=shown_fingerprint(approval),
        session=session,
        agent_title=agent.title if agent else session.agent,
        summary=summary(agent, request.call.tool, arguments),
        effect=str((tool.get("policy") or {}).get("effect") or ""),
        fields=fields(approval.arguments, schema, typed, edited=approval.edited),
        editable=bool(tool),
        agent_problem=agent_cannot_run(session),
        new_definition=session.new_definition,
        repeats=_repeated(approval.repeats) if approval.repeats is not None else None,
        earlier=earlier,
    )


def shown_fingerprint(approval: Approval) -> str:
    """What a form sends back to say which arguments the person saw.

    The stored fingerprint needs no key, so that a short hidden argument could be found from it by trying.
    """
    return salted_hmac(f"approval {approval.pk}", approval.fingerprint, algorithm="sha256").hexdigest()


def stored_fingerprint(approval: Approval | None, shown: str) -> str:
    """The fingerprint for which ``shown`` was sent back; "", which no call has, if it is not that of the approval."""
    same = approval is not None and constant_time_compare(shown_fingerprint(approval), shown)
    return approval.fingerprint if approval is not None and same else ""


def _repeated(call: ToolCall) -> RepeatedCall:
    return RepeatedCall(call, readable(call.result) if call.status == CallStatus.DONE else None)
