"""Writes of one row from which nothing is read: like `save` of Django, but their SQL is made once in a process.

On PostgreSQL such a write waits for the next statement of its transaction, or for its COMMIT, with which it is sent in
one round trip (`agentstate.postgresql.later`). What the database has against it is raised then. SQLite writes at once.

The tests compare such statements with what Django would make of them (`tests/compiling.py`).
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

from django.db import DEFAULT_DB_ALIAS, connection, models
from django.db.models.signals import post_save

from sessions_app.models.columns import converted
from sessions_app.models.sql import Statement, insert_sql, update_sql


def insert_later(row: models.Model) -> None:
    """Insert a new row. The key that the database gives it is not known: the row only gets the one that it has."""
    names = columns_to_insert(type(row), row.pk is not None)
    _write(row, names, insert_sql(connection.vendor, ((type(row), names, 1),)))
    row._state.adding, row._state.db = False, DEFAULT_DB_ALIAS
    _tell(row, created=True)


def update_later(row: models.Model, names: Sequence[str]) -> None:
    """Write these columns of a row that is locked, or that nobody deletes."""
    if names:
        key = _key(type(row))
        _write(row, (*names, key), update_sql(connection.vendor, type(row), tuple(names), (key,), ""))
        _tell(row, created=False, names=frozenset(names))


def _write(row: models.Model, names: Sequence[str], statement: Statement) -> None:
    """:param names: Of the columns whose values the statement takes."""
    wrapper: Any = connection
    wrapper.write_later(statement[0], _values(row, names, statement))


def _values(row: models.Model, names: Sequence[str], statement: Statement) -> list[Any]:
    return converted(statement[1], [getattr(row, name) for name in names], connection)


def _tell(row: models.Model, *, created: bool, names: frozenset[str] | None = None) -> None:
    """As `save` does: the mirror and the pages that are open follow it."""
    post_save.send(
        sender=type(row),
        instance=row,
        created=created,
        update_fields=names,
        raw=False,
        using=DEFAULT_DB_ALIAS,
    )


@cache
def columns_to_insert(model: type[models.Model], has_key: bool) -> tuple[str, ...]:
    """Those that an INSERT has values for.

    :param has_key: Whether the row has its key before the database gives it one.
    """
    fields = [field for field in model._meta.concrete_fields if not field.generated]
    return tuple(field.attname for field in fields if has_key or not field.primary_key)


def _key(model: type[models.Model]) -> str:
    assert model._meta.pk is not None
    return model._meta.pk.attname
