"""Rows that meet one of several conditions, read as parts with an index each.

Of such rows PostgreSQL reads all that may be among them, and sorts them, however few are wanted. Of parts it reads no
more of each than are wanted.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from django.db import connection
from django.db.models import BooleanField, Case, F, Q, QuerySet, Value, When

from sessions_app.models.selects import NO_ROWS, Sql, as_sql, chosen, union


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


def opaque(condition: Q) -> Case:
    """The condition in a form that PostgreSQL does not look into: it uses no index for it but one of the same form."""
    return Case(When(condition, then=True), default=False, output_field=BooleanField())


@dataclass(frozen=True, slots=True)
class SortedFirst:
    """Rows that are few: PostgreSQL finds and sorts all of them before it takes the first ones.

    Else it reads an index in the order of the rows until it has met enough of them, which may be nearly all of the
    index: what it expects of columns that depend on each other is wrong.

    condition: another one, which takes longer to ask of a row than to find and sort that. It is asked of one row after
        the other until enough meet it, so either nearly all do, or there are hardly any rows.
    columns: of the rows, by the names that ``sql`` has for them. ``sql``, with its parameters, asks the same as
        ``condition``.
    """

    rows: QuerySet[Any]
    condition: Q = field(default_factory=Q)
    columns: dict[str, str] = field(default_factory=dict)
    sql: Sql = ("TRUE", ())

    def filter(self, where: Q) -> Self:
        return replace(self, rows=self.rows.filter(where))

    def all(self) -> QuerySet[Any]:
        """The rows in any order."""
        return self.rows.filter(self.condition)

    def first_keys(self, order: Sequence[str], limit: int) -> Sql:
        """Selects the primary keys of the first rows."""
        if connection.vendor == "sqlite":
            return as_sql(self.all().order_by(*order).values("pk")[:limit])
        by = [
            (f"by_{place}", column.removeprefix("-"), column.startswith("-"))
            for place, column in enumerate(order)
        ]
        read = {
            name: F(column)
            for name, column in (*self.columns.items(), *((name, column) for name, column, _ in by))
        }
        sql, values = as_sql(self.rows.order_by(*order).values(checked=F("pk"), **read))
        if sql == NO_ROWS:
            return NO_ROWS, ()
        again = ", ".join(f"{name} DESC" if is_falling else name for name, _, is_falling in by)
        check, checked_with = self.sql
        # An offset keeps PostgreSQL from planning both at once.
        return (
            f"SELECT checked FROM ({sql} OFFSET 0) AS line WHERE {check} ORDER BY {again} LIMIT {limit:d}",  # noqa: S608 - a select of our own
            (*values, *checked_with),
        )


Part = QuerySet[Any] | SortedFirst


def first_of_each(parts: Sequence[Part], order: Sequence[str], limit: int) -> Sql:
    """Selects the primary keys of the first rows of each part, up to `limit` of each. No key comes from two parts."""
    return union([_first_keys(rows, order, limit) for rows in parts])


def _first_keys(rows: Part, order: Sequence[str], limit: int) -> Sql:
    if isinstance(rows, SortedFirst):
        return rows.first_keys(order, limit)
    return as_sql(rows.order_by(*order).values("pk")[:limit])


def first_of_all(
    parts: Sequence[Part], order: Sequence[str], limit: int, *, keys_first: bool = False
) -> QuerySet[Any]:
    """The first `limit` rows of all parts together, each row once; more columns can be chosen of what is returned.

    :param keys_first: Columns of other tables that are chosen are read of these rows only, also where PostgreSQL has to
        sort thousands to find them.
    """
    first, *others = parts
    if isinstance(first, QuerySet) and not others and not keys_first:
        return first.order_by(*order)[:limit]
    model = first.model if isinstance(first, QuerySet) else first.rows.model
    return chosen(model, first_of_each(parts, order, limit)).order_by(*order)[:limit]
