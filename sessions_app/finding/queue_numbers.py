"""How many sessions each queue of the desk has, up to a number that a page shows.

Of a filter that many sessions match, only a part of each queue is looked at. Nothing is locked.
"""

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Self

from django.contrib.auth.models import User
from django.db import models
from django.db.models import Q, QuerySet, Value
from django.db.models.expressions import RawSQL

from sessions_app.finding.counting import MOST, Count, count_each, numbers_of, up_to_most
from sessions_app.finding.keys import are
from sessions_app.finding.newest import among
from sessions_app.finding.queues import (
    BY_KEY,
    QUEUES,
    Queue,
    conditions_of,
    contradict,
    keys_of_matching,
    order_of,
    queue_filter,
)
from sessions_app.finding.stuck import LONGEST_FIRST
from sessions_app.models import Session
from sessions_app.models.compiled import compiled, planned_anew
from sessions_app.models.selects import NO_ROWS, Sql, as_sql, sql_of, union

# Of a filter that more than `counting.MOST` sessions match, so many sessions of each queue are looked at: to count the
# few of a large queue that match, all of it would be read.
LOOKED_AT = 200
# In the text of a query, in place of the select of the keys of the sessions that it is about.
_KEYS = "KEYS_THAT_ARE_LOOKED_AT"

_NONE = [Count(0, more=False)] * len(QUEUES)


@dataclass(frozen=True, slots=True)
class QueueCount:
    queue: Queue
    number: Count

    def at_least(self, number: int) -> Self:
        """The same where so many sessions of the queue are known."""
        if not self.number.more:
            return self
        known = max(self.number.number, min(number, MOST))
        return replace(self, number=replace(self.number, number=known))


def counts(
    now: datetime,
    where: Q | None = None,
    *,
    few: bool | None = None,
    cut: bool = False,
    cut_but: str = "",
    by_row: bool = False,
) -> list[QueueCount]:
    """How many sessions of each queue match the filter ``where``, up to `counting.MOST`. One query, or two.

    Of a filter that more than `counting.MOST` sessions match, a number is that of the newest `LOOKED_AT` of the queue,
    or of each of its conditions, and there may be more if these are not all. Of the stuck sessions those are looked at
    that have been stuck longest.

    :param few: The filter matches some thousands of sessions at most: they are read once, and not for each queue. None
        if that is to be found out.
    :param cut: It does not match all that it should: there may be more in each queue, but for the queue ``cut_but``.
    :param by_row: The filter takes little to ask it of a session, and is asked of each that is looked at.
    """
    if not where:
        counted = count_each([_to_count(queue.key, now) for queue in QUEUES], prepared=True)
    else:
        if few is None:
            keys, few = keys_of_matching(where)
            where = are(keys) if few else where
        counted = _count_few(now, where) if few else _count_many(now, where, by_row)
    return _of_each_queue(counted, cut, cut_but)


def none(*, cut: bool = False, cut_but: str = "") -> list[QueueCount]:
    """The `counts` of a filter that no session matches. No query."""
    return _of_each_queue(_NONE, cut, cut_but)


def _of_each_queue(counted: Sequence[Count], cut: bool, cut_but: str) -> list[QueueCount]:
    return [
        QueueCount(queue, number.or_more(cut and queue.key != cut_but))
        for queue, number in zip(QUEUES, counted, strict=True)
    ]


def count_of_own(key: str, user: User, now: datetime) -> Count:
    """How many sessions of the queue are assigned to the person, up to `counting.MOST`. One query."""
    at = now if BY_KEY[key].by_time else None
    [number] = count_each([_own.sql_with_params(user.pk, at, key=key)])
    return number


@planned_anew
def _own(user: int, now: datetime | None, *, key: str) -> QuerySet[Session, uuid.UUID]:
    return up_to_most(Session.objects.filter(queue_filter(key, now), assignee=user))


def _to_count(key: str, now: datetime) -> Sql:
    at = now if BY_KEY[key].by_time else None
    return union(
        [
            _part_to_count.sql_with_params(at, key=key, part=part)
            for part in range(len(conditions_of(key, now)))
        ]
    )


def _count_few(now: datetime, where: Q) -> list[Count]:
    numbers = _numbers_in_queues.first(where, now)
    return [Count.of(number) for number in numbers] if numbers else _NONE


@planned_anew
def _numbers_in_queues(where: Q, now: datetime) -> QuerySet[Session, tuple[int, ...]]:
    """One row."""
    in_queue = {
        f"in_{queue.key}": models.Count("pk", filter=queue_filter(queue.key, now)) for queue in QUEUES
    }
    rows = Session.objects.filter(where).order_by().annotate(one=Value(1)).values("one")
    return rows.annotate(**in_queue).values_list(*in_queue)


def _count_many(now: datetime, where: Q, by_row: bool) -> list[Count]:
    """The counts of a filter that more than `counting.MOST` sessions match: in all queues together there are more."""
    counted = [queue.key for queue in QUEUES if queue.key != "all"]
    matching, beyond = [], []
    matching_in = _in_rows(where) if by_row else _in_table(where)
    for key in counted:
        at = now if BY_KEY[key].by_time else None
        numbered = [
            part for part, condition in enumerate(conditions_of(key, now)) if not contradict(where, condition)
        ]
        looked_at = [_newest.sql_with_params(at, key=key, part=part, most=LOOKED_AT) for part in numbered]
        matching.append(union([matching_in(keys) for keys in looked_at]))
        further = [
            _newest.sql_with_params(at, key=key, part=part, most=1, behind=LOOKED_AT) for part in numbered
        ]
        beyond.append(union(further))
    numbers = numbers_of([*matching, *beyond])
    few = [
        Count(min(number, MOST), more=number > MOST or bool(more))
        for number, more in zip(numbers[: len(counted)], numbers[len(counted) :], strict=True)
    ]
    return [*few, Count(MOST, more=True)]


def _in_rows(where: Q) -> Callable[[Sql], Sql]:
    """Selects the keys of those that match among the sessions whose keys are selected: each of their rows is asked.

    No table is joined: of a small one or a common filter PostgreSQL would read all sessions that match, for each queue.
    """
    matching = sql_of(_matching, where)

    def among_rows(keys: Sql) -> Sql:
        _, rows = keys[0].split(" FROM ", 1)
        return among((f"SELECT * FROM {rows}", keys[1]), matching)  # noqa: S608 - a select of our own

    return among_rows


@planned_anew
def _matching(where: Q) -> QuerySet[Session, uuid.UUID]:
    return up_to_most(Session.objects.filter(where))


def _in_table(where: Q) -> Callable[[Sql], Sql]:
    """As `_in_rows`, where the filter stands for rows of other tables or takes long to ask."""
    query = as_sql(up_to_most(Session.objects.filter(where, pk__in=RawSQL(_KEYS, ()))))  # noqa: S611 - our own SQL

    def among_keys(keys: Sql) -> Sql:
        if query == (NO_ROWS, ()):
            return query
        # The select of the keys stands last in it, so its parameters do, too.
        before, after = query[0].split(_KEYS)
        return before + keys[0] + after, (*query[1], *keys[1])

    return among_keys


@compiled
def _newest(
    now: datetime | None, *, key: str, part: int, most: int, behind: int = 0
) -> QuerySet[Session, uuid.UUID]:
    """The keys of so many sessions of a part of the queue, behind those that changed last, or are stuck longest."""
    order = LONGEST_FIRST[part : part + 1] if BY_KEY[key].by_time else order_of(False)
    rows = Session.objects.filter(conditions_of(key, now)[part]).order_by(*order)
    return rows.values_list("pk", flat=True)[behind : behind + most]


@compiled
def _part_to_count(now: datetime | None, *, key: str, part: int) -> QuerySet[Session, uuid.UUID]:
    return up_to_most(Session.objects.filter(conditions_of(key, now)[part]))
