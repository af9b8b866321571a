"""SELECTs as parts of another query: their SQL, several of them together, and the rows whose keys they find."""

from collections.abc import Sequence
from typing import Any, ParamSpec, TypeVar

from django.core.exceptions import EmptyResultSet
from django.db.models import Model, Q, QuerySet
from django.db.models.expressions import RawSQL

from sessions_app.models.compiled import CompiledQuery

P = ParamSpec("P")
# A SELECT and its parameters.
Sql = tuple[str, tuple[Any, ...]]
NO_ROWS = "SELECT 1 WHERE 1 = 0"
Row = TypeVar("Row", bound=Model)


def as_sql(rows: QuerySet[Any, Any]) -> Sql:
    """The query as a part of another."""
    try:
        sql, values = rows.query.sql_with_params()
    except EmptyResultSet:
        return NO_ROWS, ()
    return sql, tuple(values)


def sql_of(query: CompiledQuery[P, Any], *args: P.args, **kwargs: P.kwargs) -> Sql:
    """As `as_sql`, of the query that is called with these arguments."""
    try:
        return query.sql_with_params(*args, **kwargs)
    except EmptyResultSet:
        return NO_ROWS, ()


def chosen(model: type[Row], keys: Sql) -> QuerySet[Row]:
    """The rows whose primary keys are selected."""
    return model._default_manager.filter(are_chosen(keys))


def are_chosen(keys: Sql) -> Q:
    """The condition that the primary key is selected."""
    sql, values = keys
    return Q(pk__in=RawSQL(sql, values) if sql != NO_ROWS else [])  # noqa: S611 - selects of our own


def union(parts: Sequence[Sql]) -> Sql:
    """Selects what each part selects."""
    selects = [part for part in parts if part != (NO_ROWS, ())]
    if len(selects) < 2:
        return selects[0] if selects else (NO_ROWS, ())
    sql = " UNION ".join(f"SELECT * FROM ({sql}) AS part" for sql, _ in selects)  # noqa: S608 - selects of our own
    return sql, tuple(value for _, values in selects for value in values)
