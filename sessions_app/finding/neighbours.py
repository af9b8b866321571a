"""The sessions before and after one in a queue, for going from one to the next.

Nothing is locked.
"""

import uuid
from dataclasses import dataclass
from datetime import datetime

from sessions_app.finding.queues import BY_KEY, beyond_of, order_of, select
from sessions_app.models import Session

# Beyond so many neighbours on either side, the exact number is of no use.
COUNTED = 500


@dataclass(frozen=True, slots=True)
class Neighbours:
    """``place`` is the session's number among the ``total``, both counted up to `COUNTED` on either side."""

    previous: uuid.UUID | None
    following: uuid.UUID | None
    place: int
    total: int
    more: bool


def neighbours(session: Session, key: str, *, now: datetime) -> Neighbours:
    """The sessions before and after this one in a queue, and how many there are. Two queries of `COUNTED` ids each."""
    ascending = BY_KEY[key].oldest_first
    rows = select(key, now, None).exclude(pk=session.pk).values_list("pk", flat=True)
    cursor = (session.updated_at, session.pk)
    after, before = (
        list(rows.filter(beyond_of(*cursor, ascending=up)).order_by(*order_of(up))[: COUNTED + 1])
        for up in (ascending, not ascending)
    )
    numbers = [min(len(keys), COUNTED) for keys in (before, after)]
    return Neighbours(
        before[0] if before else None,
        after[0] if after else None,
        place=numbers[0] + 1,
        total=sum(numbers) + 1,
        more=max(len(before), len(after)) > COUNTED,
    )
