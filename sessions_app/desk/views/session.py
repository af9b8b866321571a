"""What the pages of a session share: the frame around each tab, and the cards of its open approvals."""

from typing import Any

from sessions_app.desk import live_key
from sessions_app.desk.context import Request
from sessions_app.desk.pages import approvals, doubts
from sessions_app.desk.pages.earlier_effects import Request as EarlierRequest
from sessions_app.desk.pages.session.also_open import also_open
from sessions_app.desk.pages.session.context import SessionContext
from sessions_app.desk.pages.session.header import Header, header
from sessions_app.desk.views.live import poll
from sessions_app.finding import queues
from sessions_app.finding.neighbours import neighbours
from sessions_app.models import CallStatus, InboxMessage, unread_messages


def session_frame(request: Request, context: SessionContext) -> dict[str, Any]:
    """What every page of a session shows above its tab, for the template.

    The queries of `header`; two more if a queue is known, and one more if another person has the session open.
    """
    queue = context.queue
    return {
        **session_values(request, context),
        "also_open": also_open(context),
        "follows": poll(request, context),
        "queue_title": queues.BY_KEY[queue].title if queue else "",
        "neighbours": neighbours(context.session, queue, now=context.now) if queue else None,
    }


def session_values(request: Request, context: SessionContext) -> dict[str, Any]:
    """What the parts of a session's page are drawn from, without the line at its top. The queries of `header`."""
    return {
        "session": context.session,
        "branch": context.branch,
        "now": context.now,
        "mask": context.mask,
        "why_not": context.why_not,
        "header": header(context),
        "live_key": live_key.make(request, context.session.pk),
        "queue": context.queue,
    }


def unread(context: SessionContext) -> list[InboxMessage]:
    """The messages that the agent has not been given yet. One query where there are some."""
    return context.mask.rows(unread_messages(context.session.pk)) if context.has_unread_messages else []


def approval_cards(context: SessionContext, top: Header) -> dict[int, approvals.Card]:
    """The open approvals of the session, with their forms, by the position of their call. At most three queries."""
    requests = []
    for call in top.open_calls:
        approval = getattr(call, "approval", None)
        if approval is not None and not approval.decision:
            requests.append(EarlierRequest(approval, call, context.session))
    return {card.call.position: card for card in approvals.cards(requests, context.mask)}


def doubts_of(context: SessionContext, top: Header) -> dict[int, doubts.Doubt]:
    """The session's calls in doubt as they are decided, by position. At most one query."""
    calls = [(call, context.session) for call in top.open_calls if call.status == CallStatus.DOUBT]
    return {doubt.call.position: doubt for doubt in doubts.of_calls(calls, context.now, context.mask)}
