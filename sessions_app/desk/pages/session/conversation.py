"""The conversation: what the customer, the agent and staff wrote, without steps and tool calls."""

from dataclasses import dataclass

from django.db.models import Q

from sessions_app.desk.pages.session import replacements
from sessions_app.desk.pages.session.context import SessionContext
from sessions_app.desk.pages.session.replacements import Replacements
from sessions_app.models import Message

PAGE = 200


@dataclass(frozen=True, slots=True)
class ConversationPage:
    """``earlier`` is the ``before`` of the page before this one, None on the first."""

    messages: list[Message]
    earlier: int | None
    replaced: Replacements


def read_page(context: SessionContext, *, before: int | None = None, limit: int = PAGE) -> ConversationPage:
    """The newest messages before a position, oldest first. One query, and at most two for replacements."""
    upto = None if before is None else before - 1
    replaced = replacements.on(context.branch, context.mask)
    rows = (
        Message.objects.visible_on(context.branch, upto=upto)
        .filter(Q(role=Message.Role.USER) | Q(role=Message.Role.ASSISTANT))
        .exclude(text="")
        .exclude(position__in=replaced.rows)
        .defer("body")
        .order_by("-position")
    )
    messages = context.mask.rows(rows[: limit + 1])
    earlier = messages[limit - 1].position if len(messages) > limit else None
    return ConversationPage(messages[:limit][::-1], earlier, replaced)
