"""The timeline: what is visible on a branch, one item per step, message, event and discarded branch.

A page is `PAGE` steps, newest last, cut at a step's start, so that its cost does not depend on how long the history
is: each query is a range scan on ``(branch, position)``. Big results are not read at all; a call's own page shows them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from agentstate.names import STEP_KINDS
from sessions_app.desk.pages import replacements
from sessions_app.desk.pages.session import discarded, timeline_items
from sessions_app.desk.pages.session.context import SessionContext
from sessions_app.desk.pages.session.page_bounds import PAGE, page_bounds
from sessions_app.desk.pages.session.step_item import StepItem
from sessions_app.desk.pages.session.timeline_filter import TimelineFilter, matching_steps
from sessions_app.desk.pages.session.timeline_items import (
    DiscardedItem,
    EventItem,
    Item,
    MessageItem,
)
from sessions_app.desk.pages.session.timeline_rows import Rows, steps_of, whole_checkpoints
from sessions_app.models import Branch, Checkpoint, Message
from sessions_app.models.rows import visible


@dataclass(frozen=True, slots=True)
class TimelinePage:
    """``earlier`` and ``later`` are positions to page from; None where there is nothing more.

    ``last_step`` is where the newest step starts: a live page is drawn again from there on. ``last_of_people`` is the
    position of the newest event or message to the agent that `read_since` found, 0 for none: with these people act.
    ``newest_checkpoint`` is that of the branch as it is stored, where `read_since` found it.
    """

    items: list[Item]
    earlier: int | None = None
    later: int | None = None
    last_step: int = 0
    last_of_people: int = 0
    newest_checkpoint: Checkpoint | None = None

    @property
    def newest_has_begun(self) -> bool:
        """Whether its newest step has; True where it has none."""
        steps = steps_of(self.items)
        return not steps or steps[-1].begun


def read_page(
    context: SessionContext,
    *,
    before: int | None = None,
    only: TimelineFilter | None = None,
    limit: int = PAGE,
) -> TimelinePage:
    """The newest ``limit`` steps that start before position ``before``, and what lies between them.

    At most fourteen queries: one for the bounds, five for the rows, two for replacements, six for discarded branches.
    """
    if only is not None:
        return _read_matching(context, before=before, only=only, limit=limit)
    bounds = page_bounds(context, before=before, limit=limit)
    items = _read_items(context, after=bounds.after, upto=bounds.upto)
    branches = discarded.discarded_branches(context, after=bounds.after, upto=bounds.upto)
    items = _with_discarded(items, branches)
    return TimelinePage(items, earlier=bounds.earlier, later=before, last_step=bounds.last_step)


def read_since(context: SessionContext, position: int) -> TimelinePage:
    """The items from the step that starts at ``position`` on: what a live page draws again. At most seven queries.

    Up to the position that the session had when its row was read: what was committed since is in the next answer.
    """
    after, upto = max(0, position - 1), context.session.position
    checkpoints = whole_checkpoints(visible(context.branch, after=after, upto=upto))
    rows = Rows.read(
        context,
        context.branch,
        after=after,
        upto=upto,
        checkpoints=checkpoints,
        may_have_events=context.newest_event is None or context.newest_event > after,
    )
    items = _with_replacements(context, rows)
    steps = steps_of(items)
    of_people = [row.position for row in rows.messages if row.role == Message.Role.USER]
    of_people += [row.position for row in rows.events]
    return TimelinePage(
        items,
        last_step=steps[-1].position if steps else position,
        last_of_people=max(of_people, default=0),
        newest_checkpoint=checkpoints[-1] if checkpoints else None,
    )


def above_the_first_step(items: Sequence[Item]) -> list[Item]:
    """The first of the items of `read_since`: what happened after the checkpoint of the step and before that began.

    A page that was drawn before the step began has it below the step.
    """
    return list(takewhile(lambda item: not isinstance(item, StepItem), items))


def before_of_page_around(branch: Branch, position: int) -> int | None:
    """The ``before`` of a page that shows ``position``; None for the newest page. One query."""
    later = list(
        Checkpoint.objects.filter(kind__in=STEP_KINDS)
        .oldest_within(visible(branch, after=position), PAGE // 2 + 1)
        .values_list("position", flat=True)
    )
    return later[PAGE // 2] if len(later) > PAGE // 2 else None


def _read_matching(
    context: SessionContext, *, before: int | None, only: TimelineFilter, limit: int
) -> TimelinePage:
    """Only the steps that match the filter, or only what people did and sent."""
    spans, rows, more = matching_steps(
        context.branch, only, before=before, limit=limit, totals=context.session.totals
    )
    items: list[Item] = [
        *(
            steps_of(_read_items(context, after=spans[0][0] - 1, upto=spans[-1][1], within=spans))
            if spans
            else ()
        ),
        *(
            MessageItem.of(row) if isinstance(row, Message) else EventItem.of(row)
            for row in context.mask.rows(rows)
        ),
    ]
    items.sort(key=lambda item: item.position)
    return TimelinePage(items, earlier=items[0].position if more and items else None, later=before)


def _read_items(
    context: SessionContext,
    *,
    after: int,
    upto: int | None,
    within: Sequence[tuple[int, int | None]] | None = None,
) -> list[Item]:
    return _with_replacements(
        context, Rows.read(context, context.branch, after=after, upto=upto, within=within)
    )


def _with_replacements(context: SessionContext, rows: Rows) -> list[Item]:
    found = replacements.on(context.branch, context.mask)
    return timeline_items.with_replacements(rows.assemble(context), found)


def _with_discarded(items: list[Item], branches: Sequence[DiscardedItem]) -> list[Item]:
    """Each discarded branch goes before the step that began again when the branch was left."""
    merged: list[Item] = []
    waiting = sorted(branches, key=lambda item: (item.left_at, item.position))
    for item in items:
        while waiting and waiting[0].left_at <= item.position:
            merged.append(waiting.pop(0))
        merged.append(item)
    return [*merged, *waiting]
