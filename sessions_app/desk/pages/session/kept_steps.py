"""Steps that an open page keeps as they are shown, when it is told how they continue. No queries.

A step of a running session is sent at least twice: as soon as there is something of it, and once it has ended. By then
its calls have mostly been shown with their results, and only its colour and its phases are new. So the newest step has
a mark in a hidden field, which changes with whatever else it shows. A page sends the mark when it asks for what is new.
Where the step has the same mark then, a placeholder is sent in place of what it shows, which htmx fills with what the
page has (`hx-preserve`), and what a person has opened there stays open.

The field stands within the step: the mark is that of what the page shows, also where it has put off an answer because
a person is typing there. What the reader may do, what is hidden and how a tool's values are written count as they were
when the step was drawn, as in the steps above it.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from sessions_app.desk.pages.session.context import SessionContext
from sessions_app.desk.pages.session.step_item import StepItem
from sessions_app.desk.pages.session.timeline_items import Item
from sessions_app.models import Status


class Mark(NamedTuple):
    """What a step shows. ``step`` is its position."""

    step: int
    text: str


def mark_of_newest(context: SessionContext, items: Sequence[Item]) -> Mark | None:
    """That of the newest of the steps; None where it has none."""
    step = next((item for item in reversed(items) if isinstance(item, StepItem)), None)
    return None if step is None else _mark(context, step)


def kept_steps(context: SessionContext, items: Sequence[Item], marks: Collection[str]) -> set[int]:
    """The positions of the steps that the page keeps.

    :param marks: The texts of those that the page has sent.
    """
    if not marks:
        return set()
    own = [_mark(context, item) for item in items if isinstance(item, StepItem)]
    return {mark.step for mark in own if mark is not None and mark.text in marks}


def _mark(context: SessionContext, step: StepItem) -> Mark | None:
    """None for a step that may show something else without any of this.

    An ended call is shown differently only when the session no longer runs, or when a person has done something, which
    is an event, as is another attempt. All else is another row of the step.
    """
    if context.session.status != Status.RUNNING or not step.begun or step.unfinished:
        return None
    rows = f"{len(step.replies)}-{len(step.model_calls)}-{len(step.calls)}"
    return Mark(step.position, f"{step.position}-{rows}-{context.newest_event or 0}")
