"""The few statements that every step of every session executes, prepared once.

The ORM builds a statement anew for each call, which costs more than executing it. Here the text is made from the
models' own fields and kept; values go through the fields, as the ORM would send them. Nothing else uses raw SQL.
"""

from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any
from uuid import UUID

from django.db import connection
from django.db.models import Field, Model

from agentstate.durable.journal import Signals
from sessions_app.models import InboxMessage, Session, Status

Values = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Fence:
    """What the session row said: the last position given out, what a person asks of the run, messages in the inbox."""

    position: int
    stop_request: str
    inbox: int

    def signals(self) -> Signals:
        return Signals(stop_request=self.stop_request, inbox=self.inbox > 0)


def fence(session_id: UUID, epoch: int, positions: int, values: Values, now: datetime) -> Fence | None:
    """Take `positions` new positions for the run of this epoch, and set `values`; None if its claim is over.

    Locks the session row until the transaction ends.
    """
    given = [_adapt(Session, name, value) for name, value in values.items()]
    with connection.cursor() as cursor:
        cursor.execute(
            _fence_sql(connection.vendor, tuple(values)),
            [positions, _adapt(Session, "updated_at", now), *given, _adapt(Session, "id", session_id), epoch],
        )
        row = cursor.fetchone()
    return Fence(*row) if row else None


def insert(model: type[Model], rows: list[Values]) -> None:
    """Insert rows that all have the same columns; a foreign key goes by its column's name."""
    if not rows:
        return
    names = tuple(rows[0])
    values = [[_adapt(model, name, row[name]) for name in names] for row in rows]
    with connection.cursor() as cursor:
        if len(values) == 1:
            cursor.execute(_insert_sql(connection.vendor, model, names), values[0])
        else:
            cursor.executemany(_insert_sql(connection.vendor, model, names), values)


def update(model: type[Model], values: Values, *, where: Values, raise_by_one: str = "") -> None:
    """Update the one row that `where` names.

    :raises LookupError: if there is none.
    """
    given = [_adapt(model, name, value) for name, value in (values | where).items()]
    with connection.cursor() as cursor:
        cursor.execute(_update_sql(connection.vendor, model, tuple(values), tuple(where), raise_by_one), given)
        if cursor.rowcount != 1:
            raise LookupError(f"no {model._meta.model_name} at {where}")


@lru_cache(maxsize=64)
def _fence_sql(vendor: str, names: tuple[str, ...]) -> str:
    table, inbox = _quoted(Session._meta.db_table), _quoted(InboxMessage._meta.db_table)
    also = "".join(f", {_column(Session, name)} = %s" for name in names)
    return (
        f"UPDATE {table} SET position = position + %s, change = change + 1, updated_at = %s{also} "  # noqa: S608 - names of our own columns
        f"WHERE id = %s AND epoch = %s AND status = '{Status.RUNNING.value}' "
        f"RETURNING position, stop_request, (SELECT COUNT(*) FROM {inbox} WHERE {inbox}.session_id = {table}.id)"
    )


@lru_cache(maxsize=64)
def _insert_sql(vendor: str, model: type[Model], names: tuple[str, ...]) -> str:
    columns = ", ".join(_column(model, name) for name in names)
    places = ", ".join(["%s"] * len(names))
    return f"INSERT INTO {_quoted(model._meta.db_table)} ({columns}) VALUES ({places})"  # noqa: S608 - names of our own columns


@lru_cache(maxsize=64)
def _update_sql(vendor: str, model: type[Model], names: tuple[str, ...], where: tuple[str, ...], raised: str) -> str:
    sets = [f"{_column(model, name)} = %s" for name in names]
    if raised:
        sets.append(f"{_column(model, raised)} = {_column(model, raised)} + 1")
    tests = " AND ".join(f"{_column(model, name)} = %s" for name in where)
    return f"UPDATE {_quoted(model._meta.db_table)} SET {', '.join(sets)} WHERE {tests}"  # noqa: S608 - names of our own columns


@lru_cache(maxsize=256)
def _field(model: type[Model], name: str) -> "Field[Any, Any]":
    return next(field for field in model._meta.concrete_fields if name in (field.name, field.attname))


def _column(model: type[Model], name: str) -> str:
    return _quoted(str(_field(model, name).column))


def _adapt(model: type[Model], name: str, value: Any) -> Any:
    return _field(model, name).get_db_prep_save(value, connection)


def _quoted(name: str) -> str:
    return connection.ops.quote_name(name)
