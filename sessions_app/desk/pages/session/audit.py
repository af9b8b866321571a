"""The audit trail of a session: every act and every turn of events on every branch, newest first."""

from dataclasses import dataclass

from sessions_app.access.masking import Mask
from sessions_app.models import Event, Session

PAGE = 100


@dataclass(frozen=True, slots=True)
class Page:
    events: list[Event]
    earlier: int | None


def page(session: Session, *, before: int | None = None, limit: int = PAGE, mask: Mask) -> Page:
    """One query."""
    rows = Event.objects.filter(session=session).select_related("branch").order_by("-position")
    if before is not None:
        rows = rows.filter(position__lt=before)
    found = mask.rows(rows[: limit + 1])
    return Page(found[:limit], found[limit - 1].position if len(found) > limit else None)
