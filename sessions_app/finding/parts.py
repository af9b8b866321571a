"""Rows that meet one of several conditions, read as parts with an index each.

Of such rows PostgreSQL reads all that may be among them, and sorts them, however few are wanted. Of parts it reads no
more of each than are wanted.
"""

from collections.abc import Sequence
from typing import Any, TypeVar

from django.core.exceptions import EmptyResultSet
from django.db.models import Model, QuerySet, Value
from django.db.models.expressions import RawSQL

# A SELECT and its parameters.
Sql = tuple[str, tuple[Any, ...]]
NO_ROWS = "SELECT 1 WHERE 1 = 0"
Row = TypeVar("Row", bound=Model)


class NotEstimated(Value):
    """A value that PostgreSQL does not look at when it estimates how many rows it is compared with.

    Its statistics know each column by itself. Of rows that have a status and a time, if and only if they have that
    status, it expects far too few.
    """

    def as_sql(self, compiler: Any, connection: Any) -> tuple[str, tuple[str | int, ...]]:
        sql, values = super().as_sql(compiler, connection)
        if connection.vendor == "postgresql":  # in a SELECT of its own a prepared value has no type
            sql = f"{sql}::{self.output_field.db_type(connection)}"
        return f"(SELECT {sql})", values


def as_sql(rows: QuerySet[Any, Any]) -> Sql:
    """The query as a part of another."""
    try:
        sql, values = rows.query.sql_with_params()
    except EmptyResultSet:
        return NO_ROWS, ()
    return sql, tuple(values)


def first_of_each(parts: Sequence[QuerySet[Any, Any]], limit: int) -> Sql:
    """Selects the primary keys of up to `limit` rows of each part, in its order. No key comes from two parts."""
    return union([as_sql(rows.values("pk")[:limit]) for rows in parts])


def union(parts: Sequence[Sql]) -> Sql:
    """Selects what each part selects."""
    selects = [part for part in parts if part != (NO_ROWS, ())]
    if len(selects) < 2:
        return selects[0] if selects else (NO_ROWS, ())
    sql = " UNION ".join(f"SELECT * FROM ({sql}) AS part" for sql, _ in selects)  # noqa: S608 - selects of our own
    return sql, tuple(value for _, values in selects for value in values)


def first_of_all(
    parts: Sequence[QuerySet[Row]], order: Sequence[str], limit: int, *, keys_first: bool = False
) -> QuerySet[Row]:
    """The first `limit` rows of all parts together, each row once; more columns can be chosen of what is returned.

    :param keys_first: Columns of other tables that are chosen are read of these rows only, also where PostgreSQL has to
        sort thousands to find them.
    """
    ordered = [rows.order_by(*order) for rows in parts]
    if len(ordered) == 1 and not keys_first:
        return ordered[0][:limit]
    sql, values = first_of_each(ordered, limit)
    found = parts[0].model._default_manager.filter(
        pk__in=RawSQL(sql, values) if sql != NO_ROWS else []  # noqa: S611 - selects of our own
    )
    return found.order_by(*order)[:limit]
