"""Writes of one row from which nothing is read: like `save` of Django, but their SQL is made once in a process.

On PostgreSQL such a write waits for the next statement of its transaction, or for its COMMIT, with which it is sent in
one round trip (`agentstate.postgresql.later`). What the database has against it is raised then. SQLite writes at once.

The tests compare each statement with what Django would make of it (`tests/conftest.py`).
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from django.db import DEFAULT_DB_ALIAS, connections, models
from django.db.models.signals import post_save

from sessions_app.models.columns import Converter, column, converted, converters_of, field_named, quoted

Statement = tuple[str, tuple[str, ...], tuple[Converter | None, ...]]
# A row is updated with some tens of different sets of fields.
MOST_STATEMENTS = 500


def insert_later(row: models.Model) -> None:
    """Insert a new row. The key that the database gives it is not known: the row only gets the one that it has."""
    _write(row, _insert(connections[DEFAULT_DB_ALIAS].vendor, type(row), row.pk is not None))
    row._state.adding, row._state.db = False, DEFAULT_DB_ALIAS
    _tell(row, created=True)


def update_later(row: models.Model, names: Sequence[str]) -> None:
    """Write these fields of a row that is locked, or that nobody deletes."""
    if names:
        _write(row, _update(connections[DEFAULT_DB_ALIAS].vendor, type(row), tuple(names)))
        _tell(row, created=False, names=frozenset(names))


def _write(row: models.Model, statement: Statement) -> None:
    database: Any = connections[DEFAULT_DB_ALIAS]
    database.write_later(statement[0], _values(row, statement))


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


def _values(row: models.Model, statement: Statement) -> list[Any]:
    _, names, converters = statement
    return converted(converters, [getattr(row, name) for name in names], connections[DEFAULT_DB_ALIAS])


@lru_cache(maxsize=MOST_STATEMENTS)
def _insert(vendor: str, model: type[models.Model], has_key: bool) -> Statement:
    names = tuple(
        field.attname
        for field in model._meta.concrete_fields
        if not field.generated and (has_key or not field.primary_key)
    )
    columns = ", ".join(column(model, name) for name in names)
    places = ", ".join(["%s"] * len(names))
    sql = f"INSERT INTO {quoted(model._meta.db_table)} ({columns}) VALUES ({places})"  # noqa: S608 - our own columns
    return sql, names, converters_of(model, names)


@lru_cache(maxsize=MOST_STATEMENTS)
def _update(vendor: str, model: type[models.Model], names: tuple[str, ...]) -> Statement:
    table, key = quoted(model._meta.db_table), model._meta.pk
    assert key is not None
    sets = ", ".join(f"{column(model, name)} = %s" for name in names)
    sql = f"UPDATE {table} SET {sets} WHERE {table}.{column(model, key.name)} = %s"  # noqa: S608 - our own columns
    attributes = (*[field_named(model, name).attname for name in names], key.attname)
    return sql, attributes, converters_of(model, attributes)
