"""Counting rows up to a limit, and naming what a list shows: neither costs more where the table has grown.

Beyond the limit a page shows "99+". A page that is open asks whether its list is still the one that it shows.
"""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache
from hashlib import sha256
from typing import Any, Self, TypeVar
from uuid import UUID

from django.db import connection
from django.db.models import IntegerField, Model, Q, QuerySet, Subquery

from sessions_app.finding.parts import Part
from sessions_app.models import Session
from sessions_app.models.compiled import planned_anew, prepared_cursor
from sessions_app.models.selects import NO_ROWS, Sql, as_sql, sql_of, union

Row = TypeVar("Row", bound=Model)
MOST = 99
# PostgreSQL gathers its statistics anew once a minute at most, as it is set up at first.
ESTIMATE_SECONDS = 60.0
_SENT = object()


class Sent(str):
    """A text that is sent with a prepared statement, and is not a part of it."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Count:
    """``number`` is exact unless there are ``more``."""

    number: int
    more: bool

    @classmethod
    def of(cls, number: int, most: int = MOST) -> Self:
        """The count of rows that were counted up to one more than ``most``."""
        return cls(min(number, most), number > most)

    def or_more(self, are_more: bool) -> Self:
        """The same number, where there may be others that were not looked for."""
        return replace(self, more=self.more or are_more)

    def __bool__(self) -> bool:
        return self.number > 0

    def __str__(self) -> str:
        return f"{self.number:,}+" if self.more else f"{self.number:,}"


def count_up_to(rows: QuerySet[Any], most: int = MOST) -> Count:
    """How many rows there are, exact up to ``most``. One query, which stops there."""
    return Count.of(rows.order_by().values("pk")[: most + 1].count(), most)


def are_about(rows: QuerySet[Any]) -> int:
    """How many rows there are, as PostgreSQL estimates by its statistics, without reading any; on SQLite exactly.

    An estimate is asked for once in `ESTIMATE_SECONDS`, with its times cut to the minute: it decides only in which way
    rows are found.
    """
    if connection.vendor == "sqlite":
        return rows.order_by().count()
    return _expected(as_sql(rows.order_by().values("pk")))


def sessions_about(where: Q) -> int:
    """As `are_about`, of the sessions that meet the condition."""
    if connection.vendor == "sqlite":
        return Session.objects.filter(where).count()
    return _expected(keys_of_sessions(where))


def keys_of_sessions(where: Q) -> Sql:
    """Selects the keys of the sessions that meet the condition."""
    return sql_of(_keys_of_sessions, where)


@planned_anew
def _keys_of_sessions(where: Q) -> QuerySet[Session, UUID]:
    return Session.objects.filter(where).order_by().values_list("pk", flat=True)


def _expected(rows: Sql) -> int:
    sql, values = rows
    if sql == NO_ROWS:
        return 0
    return estimate(sql, tuple(map(_to_the_minute, values)), time.monotonic() // ESTIMATE_SECONDS)


@lru_cache(maxsize=500)
def estimate(sql: str, values: tuple[Any, ...], period: float) -> int:
    """How many rows PostgreSQL expects. ``period`` only tells one answer from a later one."""
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN (FORMAT json) {sql}", values)
        [[plan]] = cursor.fetchone()
    return int(plan["Plan"]["Plan Rows"])


def _to_the_minute(value: Any) -> Any:
    return value.replace(second=0, microsecond=0) if isinstance(value, datetime) else value


def to_count(*parts: Part, most: int = MOST) -> Sql:
    """The rows for `count_each`: those that any of the parts has."""
    return union([as_sql(up_to_most(rows.all(), most)) for rows in parts])


def up_to_most(rows: QuerySet[Row, Any], most: int = MOST) -> QuerySet[Row, Any]:
    """The keys of the rows, as `count_each` takes the SQL of a compiled query."""
    return rows.order_by().values_list("pk", flat=True)[: most + 1]


def count_each(selects: Sequence[Sql], *, prepared: bool = False) -> list[Count]:
    """How many rows each SELECT gives, which must end by itself soon after `MOST`, as those of `to_count` do.

    One query for all of them. ``prepared`` is that of `numbers_of`.
    """
    return [Count.of(number) for number in numbers_of(selects, prepared=prepared)]


def count_of_all(selects: Sequence[Sql], *, prepared: bool = False) -> Count:
    """How many rows the SELECTs give together. One query, which reads no more of them when it has counted enough."""
    if not selects:
        return Count(0, more=False)
    parts = [f"SELECT 1 FROM ({sql}) AS part{place}" for place, (sql, _) in enumerate(selects)]  # noqa: S608 - selects of our own
    statement = f"SELECT count(*) FROM ({' UNION ALL '.join(parts)} LIMIT {MOST + 1}) AS counted"  # noqa: S608 - selects of our own
    return Count.of(*_numbers(statement, selects, prepared))


def total(numbers: Iterable[Count]) -> Count:
    """The sum, which is as exact as its parts."""
    known = list(numbers)
    number = sum(count.number for count in known)
    return Count(min(number, MOST), number > MOST or any(count.more for count in known))


def numbers_of(selects: Sequence[Sql], *, prepared: bool = False) -> list[int]:
    """How many rows each SELECT gives. One query for all of them.

    :param prepared: The selects are always the same ones, but for the numbers and times in them: PostgreSQL plans them
        once for a connection.
    """
    if not selects:
        return []
    parts = [f"(SELECT count(*) FROM ({sql}) AS part{place})" for place, (sql, _) in enumerate(selects)]  # noqa: S608 - selects of our own
    return _numbers("SELECT " + ", ".join(parts), selects, prepared)


def _numbers(statement: Any, selects: Sequence[Sql], prepared: bool) -> list[int]:
    values = [value for _, values in selects for value in values]
    is_prepared = prepared and connection.vendor == "postgresql"
    if is_prepared:
        constants = tuple([_SENT if _is_sent(value) else value for value in values])
        statement, values = _numbered(statement, constants), [value for value in values if _is_sent(value)]
    with prepared_cursor(connection) if is_prepared else connection.cursor() as cursor:
        cursor.execute(statement, values)
        return list(cursor.fetchone())


def _is_sent(value: Any) -> bool:
    """Whether the value is sent with a prepared statement; all others are part of it."""
    return isinstance(value, int | datetime | Sent) and not isinstance(value, bool)


@lru_cache(maxsize=100)
def _numbered(statement: str, constants: tuple[Any, ...]) -> bytes:
    """The statement that PostgreSQL prepares, with `_SENT` in place of each value that is sent with it."""
    wrapper: Any = connection
    places = [index for index, constant in enumerate(constants) if constant is _SENT]
    numbered: bytes = wrapper.numbered(statement, constants, places)
    return numbered


class CountUpTo(Subquery):
    """`count_up_to` for each row of another query, whose columns ``rows`` names by `OuterRef`: see `Count.of`."""

    template = "(SELECT COUNT(*) FROM (%(subquery)s) AS counted)"
    output_field = IntegerField()

    def __init__(self, rows: QuerySet[Any], most: int = MOST) -> None:
        super().__init__(rows.order_by().values("pk")[: most + 1])


def digest(values: Iterable[Any]) -> str:
    """A short text that stands for the values in their order."""
    return sha256("\n".join(map(str, values)).encode()).hexdigest()[:16]
