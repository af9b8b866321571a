"""The audit trail of a session: what people and the system did on every branch, newest first."""

from collections.abc import Mapping
from dataclasses import dataclass

from sessions_app.desk.pages.session.context import SessionContext
from sessions_app.models import Event, ToolCall

PAGE = 100


@dataclass(frozen=True, slots=True)
class AuditPage:
    """``earlier`` is the ``before`` of the page before this one, None on the first."""

    events: list[Event]
    earlier: int | None


def read_page(context: SessionContext, *, before: int | None = None, limit: int = PAGE) -> AuditPage:
    """The newest events before a position. One query."""
    rows = Event.objects.filter(session=context.session).select_related("branch").order_by("-position")
    if before is not None:
        rows = rows.filter(position__lt=before)
    events = context.mask.rows(rows[: limit + 1])
    return AuditPage(events[:limit], events[limit - 1].position if len(events) > limit else None)


def calls_of(context: SessionContext, page: AuditPage) -> Mapping[int, ToolCall]:
    """The calls that events of the page are about, masked, by their keys. One query, none if there is no such event."""
    keys = {event.data["call"] for event in page.events if isinstance(event.data.get("call"), int)}
    if not keys:
        return {}
    rows = ToolCall.objects.filter(pk__in=keys).select_related("approval").defer("result", "state")
    return {call.pk: call for call in context.mask.rows(rows)}
