"""Compares what is kept of compiled queries and writes with what Django makes of them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from django.core.signals import setting_changed
from django.db import DEFAULT_DB_ALIAS, models
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import sql as django_sql

from sessions_app.models import later
from sessions_app.models.columns import column
from sessions_app.models.compiled import CompiledQuery
from sessions_app.models.sql import Statement

# What was kept for the calls that have been compared, by the query and what may differ between two calls of it.
_compared: dict[object, Any] = {}


def compare_anew(**_: Any) -> None:
    """Compare a call also where one with the same arguments was compared before."""
    _compared.clear()


def _what_may_differ(value: Any) -> object:
    """The argument as far as Django may make another SQL of it: of a time that is its zone, and that it is on a second.

    Half the time of a page goes into comparing its queries, most of which the pages before it have made as well.
    """
    if isinstance(value, tuple):
        return tuple([_what_may_differ(part) for part in value])
    if isinstance(value, datetime):
        return datetime, str(value.tzinfo), value.microsecond == 0
    return type(value), value


@contextmanager
def checked() -> Iterator[None]:
    """Compare the calls of any compiled query in this process, once for the same arguments until `compare_anew`.

    What is kept outlives that: a query that depends on more than its arguments is found when it is compared anew.
    """
    kept_for = CompiledQuery._kept_for

    def compared(
        self: CompiledQuery[Any, Any],
        connection: BaseDatabaseWrapper,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        values: list[Any],
    ) -> Any:
        kept = kept_for(self, connection, args, kwargs, values)
        call = self, connection.vendor, _what_may_differ(args), *kwargs.items()
        if kept is None or _compared.get(call) is kept:
            return kept
        made = kept.sql, repr(kept.parameters_of(values))
        sql, parameters = self.query_set(*args, **kwargs).query.get_compiler(DEFAULT_DB_ALIAS).as_sql()
        # The values of JSON that psycopg is given are equal to none but themselves.
        expected = sql, repr(tuple(parameters))
        assert made == expected, f"{made} is not {expected}"
        _compared[call] = kept
        return kept

    values_of = later._values

    def compared_values(row: models.Model, names: Sequence[str], statement: Statement) -> list[Any]:
        values = values_of(row, names, statement)
        made = statement[0], values
        if row._state.adding:
            expected = _insert_of_django(row, names)
        else:
            made, expected = _with_null(row, names, *made), _update_of_django(row, names[:-1])
        # As above.
        assert repr(made) == repr(expected), f"{made} is not {expected}"
        return values

    CompiledQuery._kept_for = compared  # type: ignore[method-assign]
    later._values = compared_values
    setting_changed.connect(compare_anew)
    try:
        yield
    finally:
        setting_changed.disconnect(compare_anew)
        CompiledQuery._kept_for = kept_for  # type: ignore[method-assign]
        later._values = values_of


def _insert_of_django(row: models.Model, names: Sequence[str]) -> tuple[str, list[Any]]:
    query = django_sql.InsertQuery(type(row))
    query.insert_values([field for field in row._meta.concrete_fields if field.attname in names], [row])
    [(sql, parameters)] = query.get_compiler(DEFAULT_DB_ALIAS).as_sql()
    return sql, _without_sizes(parameters)


def _update_of_django(row: models.Model, names: Sequence[str]) -> tuple[str, list[Any]]:
    fields = {field.attname: field for field in row._meta.concrete_fields}
    query: Any = type(row)._base_manager.filter(pk=row.pk).query.chain(django_sql.UpdateQuery)
    query.add_update_fields([(fields[name], None, getattr(row, name)) for name in names])
    sql, parameters = query.get_compiler(DEFAULT_DB_ALIAS).as_sql()
    # It names the table of the key once more.
    return sql.replace(f'WHERE "{row._meta.db_table}".', "WHERE "), _without_sizes(parameters)


def _with_null(row: models.Model, names: Sequence[str], sql: str, values: list[Any]) -> tuple[str, list[Any]]:
    """The UPDATE as Django makes it, which has NULL in its text."""
    for name, value in zip(names, values, strict=True):
        if value is None:
            place = column(type(row), name)
            sql = sql.replace(f"{place} = %s", f"{place} = NULL", 1)
    return sql, [value for value in values if value is not None]


def _without_sizes(parameters: Sequence[Any]) -> list[Any]:
    """Django tells psycopg how large the column of an integer is. Here every integer is as large as the largest."""
    return [
        int(value) if isinstance(value, int) and type(value) is not bool else value for value in parameters
    ]
