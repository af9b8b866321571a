"""The timeline: what is visible on a branch, one item per step, message, event and discarded branch.

A page is `PAGE` steps, newest last, cut at a step's start, so that its cost does not depend on how long the history
is: each query is a range scan on ``(branch, position)``. Big results are not read at all; a call's own page shows them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from django.db.models import QuerySet

from agentstate.names import STEP_KINDS
from sessions_app.desk.pages import replacements
from sessions_app.desk.pages.session import discarded, timeline_items
from sessions_app.desk.pages.session.calls import CallItem
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
from sessions_app.history.call_rows import without_big_results
from sessions_app.history.staff_notes import note_places
from sessions_app.models import Branch, Checkpoint, Event, EventKind, Message, ModelCall, ToolCall
from sessions_app.models.compiled import compiled
from sessions_app.models.rows import Ranges, visible

# Shown elsewhere on the timeline: by the message itself, or by the line above a discarded branch.
_NOT_ITEMS = (EventKind.STARTED, EventKind.MESSAGE, EventKind.REWOUND)


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
        steps = _steps_of(self.items)
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
    checkpoints = _whole_checkpoints(visible(context.branch, after=after, upto=upto))
    rows = _Rows.read(
        context,
        context.branch,
        after=after,
        upto=upto,
        checkpoints=checkpoints,
        may_have_events=context.newest_event is None or context.newest_event > after,
    )
    items = _with_replacements(context, rows)
    steps = _steps_of(items)
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


def read_discarded(context: SessionContext, branch: Branch, begins_at: int, *, beside: int = 0) -> list[Item]:
    """The first `PAGE` steps of the discarded ``branch`` itself from ``begins_at`` on. At most eight queries.

    :param beside: They are shown on one page with the current history, of which the branch shows all up to here.
    """
    ends = list(
        Checkpoint.objects.filter(branch=branch, position__gt=begins_at, kind__in=STEP_KINDS)
        .order_by("position")
        .values_list("position", flat=True)[:PAGE]
    )
    upto = ends[-1] - 1 if len(ends) == PAGE else None
    rows = _Rows.read(context, branch, after=max(0, begins_at - 1), upto=upto)
    items = timeline_items.with_replacements(rows.assemble(), replacements.on(branch, context.mask))
    for step in _steps_of(items):
        if step.position <= beside:
            step.discarded_on = branch.number
    return [item for item in items if not isinstance(item, StepItem) or item.begun]


def _read_matching(
    context: SessionContext, *, before: int | None, only: TimelineFilter, limit: int
) -> TimelinePage:
    """Only the steps that match the filter, or only what people did and sent."""
    spans, rows, more = matching_steps(context.branch, only, before=before, limit=limit)
    items: list[Item] = [
        *(
            _steps_of(_read_items(context, after=spans[0][0] - 1, upto=spans[-1][1], within=spans))
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
        context, _Rows.read(context, context.branch, after=after, upto=upto, within=within)
    )


def _with_replacements(context: SessionContext, rows: "_Rows") -> list[Item]:
    found = replacements.on(context.branch, context.mask)
    return timeline_items.with_replacements(rows.assemble(context), found)


def _steps_of(items: Sequence[Item]) -> list[StepItem]:
    return [item for item in items if isinstance(item, StepItem)]


def _with_discarded(items: list[Item], branches: Sequence[DiscardedItem]) -> list[Item]:
    """Each discarded branch goes before the step that began again when the branch was left."""
    merged: list[Item] = []
    waiting = sorted(branches, key=lambda item: (item.left_at, item.position))
    for item in items:
        while waiting and waiting[0].left_at <= item.position:
            merged.append(waiting.pop(0))
        merged.append(item)
    return [*merged, *waiting]


Row = Checkpoint | Message | ModelCall | CallItem | Event


Within = tuple[tuple[int, int | None], ...] | None


@compiled
def _checkpoints(where: Ranges, within: Within) -> QuerySet[Checkpoint]:
    rows = Checkpoint.objects.within(where).filter(timeline_items.ranges(within))
    rows = rows.exclude(kind=Checkpoint.Kind.PREPARED)
    return rows.only("branch_id", "position", "kind", "step", "phase", "outcome", "created_at")


@compiled
def _whole_checkpoints(where: Ranges) -> QuerySet[Checkpoint]:
    return Checkpoint.objects.within(where)


@compiled
def _messages(where: Ranges, within: Within) -> QuerySet[Message]:
    rows = Message.objects.within(where).filter(timeline_items.ranges(within))
    return rows.exclude(role=Message.Role.TOOL).defer("body")


@compiled
def _model_calls(where: Ranges, within: Within) -> QuerySet[ModelCall]:
    return ModelCall.objects.within(where).filter(timeline_items.ranges(within))


@compiled
def _calls(where: Ranges, within: Within) -> QuerySet[ToolCall]:
    return without_big_results(ToolCall.objects.within(where)).filter(timeline_items.ranges(within))


@compiled
def _events(where: Ranges, within: Within) -> QuerySet[Event]:
    rows = Event.objects.within(where).filter(timeline_items.ranges(within))
    return rows.exclude(kind__in=_NOT_ITEMS)


@dataclass(slots=True)
class _Rows:
    checkpoints: list[Checkpoint]
    messages: list[Message]
    model_calls: list[ModelCall]
    calls: list[CallItem]
    events: list[Event]

    @classmethod
    def read(
        cls,
        context: SessionContext,
        branch: Branch,
        *,
        after: int,
        upto: int | None,
        within: Sequence[tuple[int, int | None]] | None = None,
        checkpoints: Sequence[Checkpoint] | None = None,
        may_have_events: bool = True,
    ) -> "_Rows":
        """The branch's rows with ``after < position <= upto``, masked, and only those in ``within``.

        Five queries, one less for each of these:

        :param checkpoints: If they have been read already: all that there are.
        :param may_have_events: False where it is known that there are none.
        """
        mask, agent = context.mask, context.session.registered_agent
        where = visible(branch, after=after, upto=upto)
        limits = None if within is None else tuple(within)
        if checkpoints is None:
            checkpoints = _checkpoints(where, limits)
        return cls(
            checkpoints=mask.rows([row for row in checkpoints if row.complete]),
            messages=mask.rows(_messages(where, limits)),
            model_calls=mask.rows(_model_calls(where, limits)),
            calls=[CallItem.of(row, mask, agent) for row in _calls(where, limits)],
            events=mask.rows(_events(where, limits)) if may_have_events else [],
        )

    def assemble(self, context: SessionContext | None = None) -> list[Item]:
        """The rows in the order of their positions, those of a step gathered into one item.

        With the context of a session, its state is that of the newest step. A checkpoint that comes first was made
        when the step before it ended.
        """
        notes = note_places(self.messages)  # shown on the calls that they are about
        messages = [row for row in self.messages if (row.branch_id, row.position) not in notes]
        rows: list[Row] = [*self.checkpoints, *messages, *self.model_calls, *self.calls, *self.events]
        rows.sort(key=lambda row: row.position)
        items: list[Item] = []
        step: StepItem | None = None
        for row in rows:
            if step is not None and not step.begun and isinstance(row, ModelCall | CallItem):
                items = _with_events_before(items, step)
            match row:
                case Checkpoint() if row.kind == Checkpoint.Kind.END:
                    if step is not None:
                        step.end(row)
                    else:
                        items = _without_repaired_end(items)
                    items.append(timeline_items.EndItem.of(row))
                    step = None
                case Checkpoint():
                    if step is not None and not step.begun and step.checkpoint.step == row.step:
                        items.remove(step)  # a repair replaced it by this one
                    elif step is not None:
                        step.end(row)
                    step = StepItem.of(row)
                    items.append(step)
                case ModelCall() if step is not None:
                    step.model_calls.append(row)
                case CallItem() if step is not None:
                    step.calls.append(row)
                case Message() if row.role == Message.Role.ASSISTANT and step is not None:
                    step.replies.append(row)
                case Message():
                    items.append(MessageItem.of(row))
                case Event() if row.kind == EventKind.RETRY and step is not None and step.failures:
                    step.retries.append(row)
                case Event():
                    items.append(EventItem.of(row, said_above=step.said_of(row) if step is not None else ""))
        if step is not None and context is not None:
            step.take_state_of(context.session, context.now)
        first = rows[0] if rows and context is not None else None
        return timeline_items.with_gaps(
            items, since=first.created_at if isinstance(first, Checkpoint) else None
        )


def _with_events_before(items: list[Item], step: StepItem) -> list[Item]:
    """With the events that happened between the step's checkpoint and its beginning in front of it."""
    place = items.index(step)
    events = [item for item in items[place:] if isinstance(item, EventItem)]
    others = [item for item in items[place:] if not isinstance(item, EventItem)]
    return [*items[:place], *events, *others]


def _without_repaired_end(items: list[Item]) -> list[Item]:
    """Without the end of the turn that a repair repeats: between the two lie only events."""
    for index in range(len(items) - 1, -1, -1):
        if isinstance(items[index], timeline_items.EndItem):
            return items[:index] + items[index + 1 :]
        if isinstance(items[index], StepItem):
            break
    return items
