"""The steps of a discarded branch, a page at a time, oldest first.

A page is `PAGE` steps and is named by the position at which its first step starts, so that its cost does not depend on
how many steps were discarded.
"""

from django.db.models import QuerySet

from agentstate.names import STEP_KINDS
from sessions_app.desk.pages import replacements
from sessions_app.desk.pages.session import timeline_items
from sessions_app.desk.pages.session.context import SessionContext
from sessions_app.desk.pages.session.page_bounds import PAGE
from sessions_app.desk.pages.session.step_item import StepItem
from sessions_app.desk.pages.session.timeline import TimelinePage
from sessions_app.desk.pages.session.timeline_items import DiscardedItem
from sessions_app.desk.pages.session.timeline_rows import Rows, steps_of
from sessions_app.models import Branch, Checkpoint, Event, Message, ModelCall


def read_page(
    context: SessionContext,
    branch: Branch,
    discarded: DiscardedItem,
    *,
    first: int = 0,
    in_place: bool = False,
) -> TimelinePage:
    """`PAGE` steps of the ``branch`` itself, from the one on that starts at ``first``. At most twelve queries.

    :param discarded: What is discarded of the branch.
    :param in_place: They are shown on one page with the history that the branch left, whose step at that place begins
        at the same checkpoint.
    """
    first = max(first, discarded.begins_at)
    ends = _starts(branch).filter(position__gt=first).order_by("position")[:PAGE]
    starts = [*ends.values_list("position", flat=True)]
    later = starts[-1] if len(starts) == PAGE and _goes_on(branch, starts[-1]) else None
    rows = Rows.read(context, branch, after=max(0, first - 1), upto=later and later - 1)
    items = timeline_items.with_replacements(rows.assemble(), replacements.on(branch, context.mask))
    for step in steps_of(items):
        if in_place and step.position <= discarded.begins_at:
            step.discarded_on = branch.number
    return TimelinePage(
        [item for item in items if not isinstance(item, StepItem) or item.begun],
        earlier=_before(branch, discarded, first, PAGE) if first > discarded.begins_at else None,
        later=later,
    )


def first_of_page_around(branch: Branch, discarded: DiscardedItem, position: int) -> int:
    """The ``first`` of a page that shows what lies at ``position``. One query."""
    return _before(branch, discarded, position + 1, PAGE // 2)


def _before(branch: Branch, discarded: DiscardedItem, position: int, steps: int) -> int:
    """Where so many discarded steps before the position begin."""
    newest = (
        _starts(branch).filter(position__gt=discarded.begins_at, position__lt=position).order_by("-position")
    )
    starts = [*newest.values_list("position", flat=True)[:steps]]
    return starts[-1] if len(starts) == steps else discarded.begins_at


def _starts(branch: Branch) -> QuerySet[Checkpoint]:
    """Those at which a step of the branch starts, or would have started."""
    return Checkpoint.objects.filter(branch=branch, kind__in=STEP_KINDS)


def _goes_on(branch: Branch, position: int) -> bool:
    """Whether anything happened on the branch after the position."""
    return any(
        model._default_manager.filter(branch=branch, position__gt=position).exists()
        for model in (ModelCall, Message, Event)
    )
