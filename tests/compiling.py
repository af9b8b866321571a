"""Compares what is kept of compiled queries and writes with what Django makes of them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any
from uuid import UUID

from django.core.signals import setting_changed
from django.db import DEFAULT_DB_ALIAS, models
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import sql as django_sql
from django.dispatch import receiver

from sessions_app.models import later
from sessions_app.models.columns import column
from sessions_app.models.compiled import CompiledQuery
from sessions_app.models.sql import Statement

# Of calls that are alike, so many are compared,
FIRST = 3
# but of one statement no more than so many.
MOST = 60
# Of those that follow, one of so many is compared.
EVERY = 64
# Of so many calls it is known how often they were made.
KNOWN = 20_000

# How often a call was made, and how often a setting had changed at the last time.
_calls: dict[object, tuple[int, int]] = {}
# How often the calls of a statement were compared, and how many have not been since.
_statements: dict[object, tuple[int, int]] = {}


class _Settings:
    changes = 0


@receiver(setting_changed)
def _note_change(**_: Any) -> None:
    _Settings.changes += 1


def _is_compared(statement: object, likeness: object) -> bool:
    """Pages make the same queries again and again: comparing each call would take a fifth of the time of a test.

    What was compared before is compared once more when a setting has changed.
    """
    call = statement, likeness
    number, changes = _calls.get(call, (0, _Settings.changes))
    has_changed = changes != _Settings.changes
    number = 1 + (min(number, FIRST - 1) if has_changed else number)
    if len(_calls) >= KNOWN:
        _calls.clear()
    _calls[call] = number, _Settings.changes
    compared, left = _statements.get(statement, (0, 0))
    is_due = number <= FIRST and (compared < MOST or has_changed)
    if is_due or left + 1 >= EVERY:
        _statements[statement] = compared + 1, 0
        return True
    _statements[statement] = compared, left + 1
    return False


def _likeness(value: Any) -> object:
    """What two arguments have in common that are alike: of times their zone, and whether they are on a second; of
    numbers their sign and how many digits they have; keys are all alike; texts only if they are equal."""
    if isinstance(value, tuple):
        return tuple([_likeness(part) for part in value])
    if isinstance(value, datetime):
        return datetime, str(value.tzinfo), value.microsecond == 0
    if isinstance(value, int) and not isinstance(value, bool):
        return int, value < 0, len(str(abs(value))) if value else 0
    return UUID if isinstance(value, UUID) else (type(value), value)


def _likeness_of_written(value: Any) -> object:
    """As `_likeness`, of a value that is written: texts and JSON are alike if both are empty, or neither is."""
    return _likeness(value) if isinstance(value, (datetime, int)) else (type(value), not value)


@contextmanager
def checked() -> Iterator[None]:
    """Compare the calls of any compiled query in this process, except where many are alike: see `FIRST`.

    What is kept outlives a test: a query that depends on more than its arguments is found by a later call, if that is
    one of those that are compared.
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
        if kept is None or not _is_compared((self, kept.sql), (_likeness(args), *kwargs.items())):
            return kept
        made = kept.sql, repr(kept.parameters_of(values))
        sql, parameters = self.query_set(*args, **kwargs).query.get_compiler(DEFAULT_DB_ALIAS).as_sql()
        # The values of JSON that psycopg is given are equal to none but themselves.
        expected = sql, repr(tuple(parameters))
        assert made == expected, f"{made} is not {expected}"
        return kept

    values_of = later._values

    def compared_values(row: models.Model, names: Sequence[str], statement: Statement) -> list[Any]:
        values = values_of(row, names, statement)
        made = statement[0], values
        if not _is_compared(statement[0], (*map(_likeness_of_written, values),)):
            return values
        if row._state.adding:
            expected = _insert_of_django(row, names)
        else:
            made, expected = _with_null(row, names, *made), _update_of_django(row, names[:-1])
        # As above.
        assert repr(made) == repr(expected), f"{made} is not {expected}"
        return values

    CompiledQuery._kept_for = compared  # type: ignore[method-assign]
    later._values = compared_values
    try:
        yield
    finally:
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
