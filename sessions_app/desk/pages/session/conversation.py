"""Only what was said: the customer, the agent, and staff who wrote to it."""

from dataclasses import dataclass

from django.db.models import Q

from sessions_app.access.masking import Mask
from sessions_app.desk.pages.session import replacements
from sessions_app.desk.pages.session.replacements import Replacements
from sessions_app.models import Branch, Message

PAGE = 200


@dataclass(frozen=True, slots=True)
class Page:
    messages: list[Message]
    earlier: int | None
    replaced: Replacements


def page(branch: Branch, *, before: int | None = None, limit: int = PAGE, mask: Mask) -> Page:
    """The newest messages before a position, oldest first. One query, and two for what was replaced."""
    upto = None if before is None else before - 1
    replaced = replacements.on(branch, mask)
    rows = (
        Message.objects.visible_on(branch, upto=upto)
        .filter(Q(role=Message.Role.USER) | Q(role=Message.Role.ASSISTANT))
        .exclude(text="")
        .exclude(position__in=replaced.rows)
        .defer("body")
    )
    found = mask.rows(rows.order_by("-position")[: limit + 1])
    return Page(found[:limit][::-1], found[limit - 1].position if len(found) > limit else None, replaced)
