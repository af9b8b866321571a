"""The first sessions of a list, which a search looks through. Nothing is locked."""

from datetime import datetime
from itertools import zip_longest
from uuid import UUID

from django.db.models import Q, QuerySet

from sessions_app.finding.facets import Facets
from sessions_app.finding.queues import (
    ATTENTION,
    BY_KEY,
    BY_TIME,
    STUCK_LONGEST,
    changed_since,
    contradict,
    first_in_order,
    order_of,
    possible,
)
from sessions_app.finding.stuck import not_moving_conditions
from sessions_app.models import Session, Status
from sessions_app.models.compiled import planned_anew

_PAUSED = Q(status=Status.PAUSED)


def first_keys(
    key: str,
    limit: int,
    *,
    now: datetime,
    where: Q | None,
    oldest_first: bool | None = None,
    several: bool = False,
    facets: Facets | None = None,
    since: datetime | None = None,
) -> tuple[list[tuple[UUID, int]], bool]:
    """The keys and last positions of the first sessions of a queue, and whether they are all of it; the parameters are
    those of `read_page`. One query for each condition of the stuck sessions and of the inbox, else one, and the
    estimates of `read_page`.

    Of the stuck sessions those that have been stuck longest, by each condition; none of them beside a filter, in the
    inbox either: no index has both. Of the inbox as many by each condition, and the paused ones last.
    """
    ascending = BY_KEY[key].oldest_first if oldest_first is None else oldest_first
    order, beyond = order_of(ascending), changed_since(since, ascending)
    conditions = possible(key, now, where)
    of_time = dict(zip(not_moving_conditions(now), STUCK_LONGEST, strict=True))
    is_mixed = key in (*BY_TIME, ATTENTION.key)
    groups = [[each] for each in conditions] if is_mixed else [conditions] if conditions else []
    if key == ATTENTION.key and not (where and contradict(where, _PAUSED)):
        # Some of them have calls in doubt.
        groups.append([_PAUSED])
    read, are_all = [], True
    for group in groups:
        longest = of_time.get(group[0]) if is_mixed else None
        if longest and where:
            are_all = False
            continue
        found = first_in_order(group, where, beyond, order, limit + 1, several=several, facets=facets)
        rows = _keys_and_positions(found, order=(longest,) if longest else order, limit=limit + 1)
        are_all = are_all and len(rows) <= limit
        read.append(rows)
    last = read.pop() if groups and groups[-1] == [_PAUSED] else []
    merged = {row: None for each in zip_longest(*read) for row in each if row} | dict.fromkeys(last)
    return list(merged)[:limit], are_all and len(merged) <= limit


@planned_anew
def _keys_and_positions(
    found: Q, *, order: tuple[str, ...], limit: int
) -> QuerySet[Session, tuple[UUID, int]]:
    return Session.objects.filter(found).order_by(*order).values_list("pk", "position")[:limit]
