"""Calls that an open page keeps as it shows them, when the step that they belong to is drawn again. No queries.

A step of a running session is drawn at least twice: as soon as there is something of it, and once it has ended. By then
most of its calls have long been shown with their results. So the newest step says in a hidden field which of its calls
the page shows ended; the page sends that field when it asks for what is new, and is sent a placeholder for each of
these calls, which htmx fills with what the page has (`hx-preserve`). What is opened within a call stays open.

An ended call is shown differently only when the session no longer runs, or when a person has done something. The first
is seen in the session, the second is an event. The field stands within the step, so that it tells what the page shows,
also where the page has put off to show an answer.
"""

from collections.abc import Iterable, Sequence

from agentstate.names import ENDED_CALL_STATES
from sessions_app.access.typed import whole_number
from sessions_app.desk.pages.session.context import SessionContext
from sessions_app.desk.pages.session.step_item import StepItem
from sessions_app.desk.pages.session.timeline_items import Item
from sessions_app.models import Status

# The field is a part of the address that is asked. Of a step with more calls the others are drawn again.
MOST = 50


def ended_calls(context: SessionContext, items: Sequence[Item]) -> str:
    """For the field of the newest step: the newest event, and the positions of its ended calls; "" for none."""
    step = next((item for item in reversed(items) if isinstance(item, StepItem)), None)
    if step is None or context.session.status != Status.RUNNING:
        return ""
    ended = [call.position for call in step.calls if call.row.status in ENDED_CALL_STATES]
    return " ".join(map(str, [context.newest_event or 0, *ended[:MOST]])) if ended else ""


def kept_calls(context: SessionContext, fields: Iterable[str]) -> set[int | None]:
    """The positions of the calls that the page keeps.

    :param fields: Those of the page that asks.
    """
    if context.session.status != Status.RUNNING:
        return set()
    newest_event = str(context.newest_event or 0)
    kept: set[int | None] = set()
    for field in fields:
        event, _, positions = field.partition(" ")
        if event == newest_event:
            kept.update(map(whole_number, positions.split()[:MOST]))
    return kept
