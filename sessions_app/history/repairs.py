"""The repairs whose changes the history of a branch shows, as the events that record them.

The event of a repair lies behind the checkpoint that the repair made. Whoever rewinds to that checkpoint or forks from
it has the changes in the history, and not the event: a repair belongs to its branch as a whole.
"""

from collections.abc import Mapping
from typing import Final

from django.db.models import QuerySet

from sessions_app.models import Branch, Event, EventKind
from sessions_app.models.compiled import compiled
from sessions_app.models.event import BESIDE_TURNS
from sessions_app.models.rows import Ranges

# What the event of a repair says was changed.
OF_A_MESSAGE: Final = "message"
OF_WHAT_WAS_SAID: Final = (OF_A_MESSAGE, "value")


def on_each(branches: Mapping[Branch, int]) -> dict[int, list[Event]]:
    """By the keys of the branches, the repairs that each shows, recorded after the position that is given for it.

    One query for any number of branches; none if no branch has ancestors.
    """
    segments = {branch.pk: {pk for pk, _ in branch.segments()} for branch in branches}
    after: dict[int, int] = {}
    for branch, position in branches.items():
        if branch.left_another_branch:
            for pk in segments[branch.pk]:
                after[pk] = min(after.get(pk, position), position)
    events = _events(tuple((pk, position, None) for pk, position in sorted(after.items()))) if after else []
    return {
        branch.pk: [event for event in events if event.branch_id in segments[branch.pk]]
        for branch in branches
    }


@compiled
def _events(where: Ranges) -> QuerySet[Event]:
    repairs = Event.objects.filter(BESIDE_TURNS, kind=EventKind.REPAIRED)
    return repairs.within(where).order_by("position")
