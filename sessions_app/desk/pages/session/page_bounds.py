"""Where a page of a session's history begins and ends: at beginnings of steps, so that it shows whole ones."""

from dataclasses import dataclass

from django.db.models import QuerySet

from agentstate.names import STEP_KINDS
from sessions_app.desk.pages.session.context import SessionContext
from sessions_app.models import Checkpoint
from sessions_app.models.compiled import compiled
from sessions_app.models.rows import Ranges, visible

# Some 75 lines, of which each costs the server a millisecond or more.
PAGE = 25


@dataclass(frozen=True, slots=True)
class PageBounds:
    """The rows of a page have ``after < position <= upto``. ``earlier`` is the ``before`` of the page before it."""

    after: int
    upto: int
    earlier: int | None
    last_step: int


def page_bounds(context: SessionContext, *, before: int | None, limit: int = PAGE) -> PageBounds:
    """The bounds of the newest ``limit`` steps that start before position ``before``. One query.

    A page ends at the position that the session had when its row was read: its queries could see different commits.
    """
    upto = context.session.position if before is None else before - 1
    starts = _starts(visible(context.branch, upto=upto), most=limit + 1)
    first = starts[limit - 1] if len(starts) > limit else None
    return PageBounds(max(0, (first or 0) - 1), upto, first, starts[0] if starts else 0)


@compiled
def _starts(where: Ranges, *, most: int) -> QuerySet[Checkpoint, int]:
    starts = Checkpoint.objects.filter(kind__in=STEP_KINDS).newest_within(where, most)
    return starts.values_list("position", flat=True)
