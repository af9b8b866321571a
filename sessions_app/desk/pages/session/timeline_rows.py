"""The rows of a part of a branch, and the items of the timeline that they make. Big results of calls are not read."""

from collections.abc import Sequence
from dataclasses import dataclass

from django.db.models import QuerySet

from sessions_app.desk.pages.session import timeline_items
from sessions_app.desk.pages.session.calls import CallItem
from sessions_app.desk.pages.session.context import SessionContext
from sessions_app.desk.pages.session.step_item import StepItem
from sessions_app.desk.pages.session.timeline_items import EventItem, Item, MessageItem
from sessions_app.history.call_rows import without_big_results
from sessions_app.history.staff_notes import note_places
from sessions_app.models import Branch, Checkpoint, Event, EventKind, Message, ModelCall, ToolCall
from sessions_app.models.compiled import compiled
from sessions_app.models.rows import Ranges, visible

# Shown elsewhere on the timeline: by the message itself, or by the line above a discarded branch.
_NOT_ITEMS = (EventKind.STARTED, EventKind.MESSAGE, EventKind.REWOUND)

Row = Checkpoint | Message | ModelCall | CallItem | Event


Within = tuple[tuple[int, int | None], ...] | None


@compiled
def _checkpoints(where: Ranges, within: Within) -> QuerySet[Checkpoint]:
    rows = Checkpoint.objects.within(where).filter(timeline_items.ranges(within))
    rows = rows.exclude(kind=Checkpoint.Kind.PREPARED)
    return rows.only("branch_id", "position", "kind", "step", "phase", "outcome", "created_at")


@compiled
def whole_checkpoints(where: Ranges) -> QuerySet[Checkpoint]:
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
class Rows:
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
    ) -> "Rows":
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


def steps_of(items: Sequence[Item]) -> list[StepItem]:
    return [item for item in items if isinstance(item, StepItem)]


def _with_events_before(items: list[Item], step: StepItem) -> list[Item]:
    """With the events that happened between the step's checkpoint and its beginning in front of it."""
    # It is among the last items. To find one by its value compares all that both show.
    place = next(index for index in reversed(range(len(items))) if items[index] is step)
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
