"""The audit trail of a session: what people and the machinery did on every branch, newest first."""

from dataclasses import dataclass

from sessions_app.desk.pages.session.context import SessionContext
from sessions_app.models import Event

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
