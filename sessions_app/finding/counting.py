"""Counting rows up to a limit, and naming what a list shows: neither costs more where the table has grown.

Beyond the limit a page shows "99+". A page that is open asks whether its list is still the one that it shows.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Self

from django.core.exceptions import EmptyResultSet
from django.db import connection
from django.db.models import IntegerField, Q, QuerySet, Subquery
from django.db.models.expressions import RawSQL

MOST = 99
# A SELECT and its parameters.
Sql = tuple[str, tuple[Any, ...]]
NO_ROWS = "SELECT 1 WHERE 1 = 0"


@dataclass(frozen=True, slots=True)
class Count:
    """``number`` is exact unless there are ``more``."""

    number: int
    more: bool

    @classmethod
    def of(cls, number: int, most: int = MOST) -> Self:
        """The count of rows that were counted up to one more than ``most``."""
        return cls(min(number, most), number > most)

    def __bool__(self) -> bool:
        return self.number > 0

    def __str__(self) -> str:
        return f"{self.number:,}+" if self.more else f"{self.number:,}"


def count_up_to(rows: QuerySet[Any], most: int = MOST) -> Count:
    """How many rows there are, exact up to ``most``. One query, which stops there."""
    return Count.of(rows.order_by().values("pk")[: most + 1].count(), most)


def as_sql(rows: QuerySet[Any, Any]) -> Sql:
    """The query as a part of another."""
    try:
        sql, values = rows.query.sql_with_params()
    except EmptyResultSet:
        return NO_ROWS, ()
    return sql, tuple(values)


def to_count(*parts: QuerySet[Any, Any]) -> Sql:
    """The rows for `count_each`: those that any of the parts has.

    Of rows that meet one of several conditions, PostgreSQL reads and sorts all that may. As parts, each with an index
    of its own, it ends at the limit of each.
    """
    return first_of_each([rows.order_by() for rows in parts], MOST + 1)


def first_of_each(parts: Sequence[QuerySet[Any, Any]], limit: int) -> Sql:
    """Selects the primary keys of so many rows of each part, in its order, each key once."""
    selects = [select for rows in parts if (select := as_sql(rows.values("pk")[:limit])) != (NO_ROWS, ())]
    if len(selects) < 2:
        return selects[0] if selects else (NO_ROWS, ())
    sql = " UNION ".join(f"SELECT * FROM ({sql}) AS part" for sql, _ in selects)  # noqa: S608 - selects of our own
    return sql, tuple(value for _, values in selects for value in values)


def is_first_in_any(parts: Sequence[QuerySet[Any, Any]], limit: int) -> Q:
    """The condition that a row is among so many of one of the parts, in its order: see `to_count`."""
    sql, values = first_of_each(parts, limit)
    return Q(pk__in=RawSQL(sql, values) if sql != NO_ROWS else [])  # noqa: S611 - selects of our own


def count_each(selects: Sequence[Sql]) -> list[Count]:
    """How many rows each SELECT gives, which ends by itself at one more than `MOST`, as those of `to_count` do.

    One query for all of them.
    """
    if not selects:
        return []
    parts = [f"(SELECT count(*) FROM ({sql}) AS part{place})" for place, (sql, _) in enumerate(selects)]  # noqa: S608 - selects of our own
    with connection.cursor() as cursor:
        cursor.execute("SELECT " + ", ".join(parts), [value for _, values in selects for value in values])
        return [Count.of(number) for number in cursor.fetchone()]


class CountUpTo(Subquery):
    """`count_up_to` for each row of another query, whose columns ``rows`` names by `OuterRef`: see `Count.of`."""

    template = "(SELECT COUNT(*) FROM (%(subquery)s) AS counted)"
    output_field = IntegerField()

    def __init__(self, rows: QuerySet[Any], most: int = MOST) -> None:
        super().__init__(rows.order_by().values("pk")[: most + 1])


def digest(values: Iterable[Any]) -> str:
    """A short text that stands for the values in their order."""
    return sha256("\n".join(map(str, values)).encode()).hexdigest()[:16]
