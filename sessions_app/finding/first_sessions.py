"""The first sessions of a list, which a search looks through. Nothing is locked."""

from datetime import datetime
from itertools import chain, zip_longest
from uuid import UUID

from django.db.models import Q, QuerySet

from sessions_app.finding.queues import (
    ALL,
    ATTENTION,
    BY_KEY,
    Asked,
    contradict,
    first_in_order,
    order_of,
    possible,
)
from sessions_app.finding.stuck import LONGEST_FIRST, not_moving_conditions
from sessions_app.models import Session, Status
from sessions_app.models.compiled import planned_anew

_PAUSED = Q(status=Status.PAUSED)


def first_keys(
    key: str, limit: int, *, now: datetime, asked: Asked = ALL, oldest_first: bool | None = None
) -> tuple[list[tuple[UUID, int]], bool]:
    """The keys and last positions of the first sessions of a queue, and whether they are all of it; the parameters are
    those of `queues.read_page`. One query, of the stuck sessions three and of the inbox six, and the estimates of
    `queues.read_page`.

    Of the stuck sessions those that have been stuck longest, by each condition. Of the inbox as many by each condition,
    and behind these the paused sessions, some of which have calls in doubt; beside a filter a quarter of the limit by
    each. Beside a filter no stuck sessions are found, since no index has both, and no paused ones of the inbox.
    """
    ascending = BY_KEY[key].oldest_first if oldest_first is None else oldest_first
    where, order, beyond = asked.where, order_of(ascending), asked.beyond(ascending)
    conditions, of_inbox = possible(key, now, where), key == ATTENTION.key
    longest = dict(zip(not_moving_conditions(now), LONGEST_FIRST, strict=True))
    by_condition = BY_KEY[key].by_time
    groups = [[each] for each in conditions] if by_condition else [conditions]
    each_limit, last, are_all = limit, list[list[Q]](), True
    if where and by_condition:
        others = [group for group in groups if group[0] not in longest]
        are_all = len(others) == len(groups) and not (of_inbox and not contradict(where, _PAUSED))
        groups, each_limit = others, limit // 4
    elif of_inbox:
        last = [[_PAUSED]]
    read = []
    for group in filter(None, [*groups, *last]):
        found = first_in_order(group, asked, beyond, order, each_limit + 1)
        by = (longest[group[0]],) if group[0] in longest else order
        read.append(_keys_and_positions(found, order=by, limit=each_limit + 1))
    are_all = are_all and all(len(rows) <= each_limit for rows in read)
    first, behind = read[: len(read) - len(last)], read[len(read) - len(last) :]
    merged = [row for rows in zip_longest(*first) for row in rows if row]
    sessions = list(dict.fromkeys(chain(merged, *behind)))
    return sessions[:limit], are_all and len(sessions) <= limit


@planned_anew
def _keys_and_positions(
    found: Q, *, order: tuple[str, ...], limit: int
) -> QuerySet[Session, tuple[UUID, int]]:
    return Session.objects.filter(found).order_by(*order).values_list("pk", "position")[:limit]
