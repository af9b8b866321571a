"""The timeline: what is visible on a branch, one item per step, message, event and discarded tail.

A page is `PAGE` steps, newest last, cut at a step's start, so that its cost does not depend on how long the
history is: seven queries, each a range scan on ``(branch, position)``. Results above `calls.SMALL` characters are
not read at all; a call's own page shows them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from sessions_app.access.masking import Mask
from sessions_app.desk.pages.session import discarded, replacements, timeline_items
from sessions_app.desk.pages.session.calls import CallItem, calls_of
from sessions_app.desk.pages.session.timeline_filter import Only, steps_with
from sessions_app.desk.pages.session.timeline_items import EventItem, Item, MessageItem, StepItem, TailItem
from sessions_app.models import (
    Branch,
    Checkpoint,
    Event,
    Message,
    ModelCall,
    Session,
    ToolCall,
)

PAGE = 100
STEP_KINDS = (Checkpoint.Kind.START, Checkpoint.Kind.STEP)
# Told elsewhere on the timeline: by the message itself, or by the line above a discarded tail.
UNTOLD = ("started", "message", "rewound")


@dataclass(frozen=True, slots=True)
class Page:
    """``earlier`` and ``later`` are positions to page from; None where there is nothing more.

    ``last_step`` is where the newest step starts: from there on a live page is drawn again.
    """

    items: list[Item]
    earlier: int | None = None
    later: int | None = None
    last_step: int = 0
    steps: list[StepItem] = field(default_factory=list)


def page(
    session: Session,
    branch: Branch,
    *,
    now: datetime,
    before: int | None = None,
    only: Only | None = None,
    limit: int = PAGE,
    mask: Mask,
) -> Page:
    """The newest ``limit`` steps that start before position ``before``, and what lies between them."""
    upto = None if before is None else before - 1
    if only is not None:
        return _chosen(session, branch, now=now, before=before, only=only, limit=limit, mask=mask)
    starts = list(
        Checkpoint.objects.visible_on(branch, upto=upto)
        .filter(kind__in=STEP_KINDS)
        .order_by("-position")
        .values_list("position", flat=True)[: limit + 1]
    )
    more = len(starts) > limit
    floor = starts[limit - 1] if more else 0
    found = _between(session, branch, now=now, after=max(0, floor - 1), upto=upto, with_tails=True, mask=mask)
    steps = [item for item in found if isinstance(item, StepItem)]
    return Page(
        found,
        earlier=floor if more else None,
        later=before,
        last_step=starts[0] if starts else 0,
        steps=steps,
    )


def since(session: Session, branch: Branch, position: int, *, now: datetime, mask: Mask) -> Page:
    """The items from the step that starts at ``position`` on: what a live page draws again."""
    found = _between(
        session, branch, now=now, after=max(0, position - 1), upto=None, with_tails=False, mask=mask
    )
    steps = [item for item in found if isinstance(item, StepItem)]
    return Page(found, last_step=steps[-1].position if steps else position, steps=steps)


def around(branch: Branch, position: int) -> int | None:
    """The ``before`` of a page that shows ``position``; None for the newest page."""
    later = list(
        Checkpoint.objects.visible_on(branch, after=position)
        .filter(kind__in=STEP_KINDS)
        .order_by("position")
        .values_list("position", flat=True)[: PAGE // 2 + 1]
    )
    return later[PAGE // 2] if len(later) > PAGE // 2 else None


def tail(branch: Branch, left_at: int, *, now: datetime, limit: int = PAGE, mask: Mask) -> list[Item]:
    """The steps of ``branch`` itself after ``left_at``: what a rewind left behind. The first ``limit`` of them."""
    ends = list(
        Checkpoint.objects.filter(branch=branch, position__gt=left_at, kind__in=STEP_KINDS)
        .order_by("position")
        .values_list("position", flat=True)[:limit]
    )
    upto = ends[-1] - 1 if len(ends) == limit else None
    rows = _Rows.read(branch, after=max(0, left_at - 1), upto=upto, mask=mask)
    found = timeline_items.with_replacements(rows.assemble(None, now, mask), replacements.on(branch, mask))
    return [item for item in found if not isinstance(item, StepItem) or item.begun]


def _chosen(
    session: Session, branch: Branch, *, now: datetime, before: int | None, only: Only, limit: int, mask: Mask
) -> Page:
    """Only the steps that hold something of ``only``, or only people's acts."""
    starts, events, more = steps_with(branch, only, before=before, limit=limit)
    found: list[Item] = [
        *_steps(session, branch, starts, now=now, mask=mask),
        *(EventItem.of(event) for event in mask.rows(events)),
    ]
    found.sort(key=lambda item: item.position)
    return Page(found, earlier=found[0].position if more and found else None, later=before)


def _steps(
    session: Session, branch: Branch, starts: Sequence[tuple[int, int | None]], *, now: datetime, mask: Mask
) -> list[StepItem]:
    if not starts:
        return []
    rows = _Rows.read(
        branch, after=min(first for first, _ in starts) - 1, upto=_last(starts), within=starts, mask=mask
    )
    found = timeline_items.with_replacements(rows.assemble(session, now, mask), replacements.on(branch, mask))
    return [item for item in found if isinstance(item, StepItem)]


def _last(starts: Iterable[tuple[int, int | None]]) -> int | None:
    ends = [end for _, end in starts]
    return None if None in ends else max(end for end in ends if end is not None)


def _between(
    session: Session,
    branch: Branch,
    *,
    now: datetime,
    after: int,
    upto: int | None,
    with_tails: bool,
    mask: Mask,
) -> list[Item]:
    rows = _Rows.read(branch, after=after, upto=upto, mask=mask)
    found = timeline_items.with_replacements(rows.assemble(session, now, mask), replacements.on(branch, mask))
    if with_tails:
        left = discarded.left_behind(session, branch, mask=mask, after=after, upto=upto)
        found = _with_tails(found, left)
    return found


def _with_tails(found: list[Item], left: Sequence[TailItem]) -> list[Item]:
    """Each tail goes before the step at which it was left: that step was begun anew after it."""
    merged: list[Item] = []
    waiting = sorted(left, key=lambda item: (item.left_at, item.position))
    for item in found:
        while waiting and waiting[0].left_at <= item.position:
            merged.append(waiting.pop(0))
        merged.append(item)
    return [*merged, *waiting]


Row = Checkpoint | Message | ModelCall | ToolCall | Event


@dataclass(slots=True)
class _Rows:
    checkpoints: list[Checkpoint]
    messages: list[Message]
    model_calls: list[ModelCall]
    calls: list[ToolCall]
    events: list[Event]

    @classmethod
    def read(
        cls,
        branch: Branch,
        *,
        after: int,
        upto: int | None,
        within: Sequence[tuple[int, int | None]] | None = None,
        mask: Mask,
    ) -> "_Rows":
        limits = timeline_items.ranges(within)
        return cls(
            checkpoints=mask.rows(
                Checkpoint.objects.visible_on(branch, after=after, upto=upto)
                .exclude(kind=Checkpoint.Kind.PREPARED)
                .filter(limits)
                .only("branch_id", "position", "kind", "step", "phase", "outcome", "created_at")
            ),
            messages=mask.rows(
                Message.objects.visible_on(branch, after=after, upto=upto)
                .filter(limits)
                .exclude(role="tool")
                .defer("body")
            ),
            model_calls=mask.rows(
                ModelCall.objects.visible_on(branch, after=after, upto=upto).filter(limits)
            ),
            calls=list(calls_of(branch, after=after, upto=upto).filter(limits)),
            events=mask.rows(
                Event.objects.visible_on(branch, after=after, upto=upto)
                .filter(limits)
                .exclude(kind__in=UNTOLD)
            ),
        )

    def assemble(self, session: Session | None, now: datetime, mask: Mask) -> list[Item]:
        """The rows in the order of their positions, those of a step gathered into one item."""
        rows: list[Row] = [*self.checkpoints, *self.messages, *self.model_calls, *self.calls, *self.events]
        rows.sort(key=lambda row: row.position)
        found: list[Item] = []
        step: StepItem | None = None
        for row in rows:
            match row:
                case Checkpoint() if row.kind == Checkpoint.Kind.END:
                    if step is not None:
                        step.end(row)
                    else:
                        found = _without_repaired_end(found)
                    found.append(timeline_items.EndItem.of(row))
                    step = None
                case Checkpoint():
                    if step is not None and not step.begun and step.checkpoint.step == row.step:
                        found.remove(step)  # a repair put this one in its place
                    elif step is not None:
                        step.end(row)
                    step = StepItem.of(row)
                    found.append(step)
                case ModelCall() if step is not None:
                    step.model_calls.append(row)
                case ToolCall() if step is not None:
                    step.calls.append(CallItem.of(row, mask))
                case Message() if row.role == Message.Role.ASSISTANT and step is not None:
                    step.replies.append(row)
                case Message():
                    found.append(MessageItem.of(row))
                case Event():
                    found.append(EventItem.of(row))
        if step is not None and session is not None:
            step.settle(session, now)
        return timeline_items.with_gaps(found)


def _without_repaired_end(found: list[Item]) -> list[Item]:
    """Without the end of the turn that a repair made anew: nothing lies between the two but people's doings."""
    for index in range(len(found) - 1, -1, -1):
        if isinstance(found[index], timeline_items.EndItem):
            return found[:index] + found[index + 1 :]
        if isinstance(found[index], StepItem):
            break
    return found
