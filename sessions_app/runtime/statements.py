"""The few statements that every step of every session executes, built once per process.

The ORM builds a statement again for each call, which costs more than executing it. Here the SQL is built from the
models' fields and cached; values are converted by the fields, as the ORM would convert them.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any
from uuid import UUID

from django.db import DEFAULT_DB_ALIAS, connection, connections, models
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Field, Model

from agentstate.durable.breakpoints import stored_breakpoints
from agentstate.durable.records import Signals
from sessions_app.models import InboxMessage, Session, Status

Values = dict[str, Any]
Converter = Callable[[Any, BaseDatabaseWrapper], Any]
Statement = tuple[str, tuple[Converter | None, ...]]
Rows = list[tuple[type[Model], tuple[str, ...], list[Values]]]
# What is stored was encoded before (`agentstate.durable.state.encoding`), so it does not contain itself.
_json = json.JSONEncoder(check_circular=False).encode
_pending: ContextVar["Rows | None"] = ContextVar("agentstate_pending_rows", default=None)
# The characters of "+00:00".
OFFSET = 6
# Rows of one INSERT: SQLite takes 32,766 values, PostgreSQL 65,535.
ROWS_AT_ONCE = 100


@dataclass(frozen=True, slots=True)
class Fence:
    """What the session row holds: the last position given out, a stop request, the number of unread messages, the line
    of forks as the driver returns it (None for a session without forks that is none), and the breakpoints.
    """

    position: int
    stop_request: str
    unread: int
    line: str | UUID | None
    breakpoints: Sequence[dict[str, Any]] = ()

    def signals(self) -> Signals:
        return Signals(self.stop_request, self.unread > 0, stored_breakpoints(self.breakpoints))


def fence(session_id: UUID, epoch: int, positions: int, values: Values) -> Fence | None:
    """Take so many new positions for the run of this epoch, and set `values`; None if its claim is over.

    Locks the session row until the transaction ends. The new positions are the last ones up to `Fence.position`.
    """
    database = connections[DEFAULT_DB_ALIAS]
    sql, converters = _fence_sql(database.vendor, tuple(values))
    parameters = _converted(converters, (*values.values(), session_id), database)
    with database.cursor() as cursor:
        cursor.execute(sql, [positions, *parameters, epoch])
        row = cursor.fetchone()
    if row is None:
        return None
    position, stop_request, unread, line, breakpoints = row
    if isinstance(breakpoints, str):
        breakpoints = json.loads(breakpoints)
    return Fence(position, stop_request, unread, line, breakpoints or ())


def insert(model: type[Model], rows: list[Values]) -> None:
    """Insert rows that all have the same columns; a foreign key is named by its column, as in ``branch_id``.

    Inside `together` they are inserted at its end.
    """
    pending = _pending.get()
    if not rows:
        return
    if pending is None:
        _insert_all([(model, tuple(rows[0]), rows)])
        return
    for other, names, others in pending:
        if other is model and names == tuple(rows[0]):
            others.extend(rows)
            return
    pending.append((model, tuple(rows[0]), [*rows]))


@contextmanager
def together() -> Iterator[None]:
    """Insert what is inserted inside at the end, in as few statements as the database takes: on PostgreSQL in one."""
    pending: Rows = []
    token = _pending.set(pending)
    try:
        yield
    finally:
        _pending.reset(token)
    if pending:
        _insert_all(pending)


def _insert_all(inserts: Rows) -> None:
    # Not with executemany: psycopg runs it as a pipeline, after which PostgreSQL no longer ends an idle transaction.
    batches = inserts
    few = sum([len(rows) for _, _, rows in inserts]) <= ROWS_AT_ONCE
    if not few:
        batches = [
            (model, names, rows[start : start + ROWS_AT_ONCE])
            for model, names, rows in inserts
            for start in range(0, len(rows), ROWS_AT_ONCE)
        ]
    database = connections[DEFAULT_DB_ALIAS]
    statements = [batches] if few and database.vendor == "postgresql" else [[batch] for batch in batches]
    with database.cursor() as cursor:
        for parts in statements:
            lengths = tuple([(model, names, len(rows)) for model, names, rows in parts])
            sql, converters = _insert_sql(database.vendor, lengths)
            values = [value for _, _, rows in parts for row in rows for value in row.values()]
            cursor.execute(sql, _converted(converters, values, database))


def update(model: type[Model], values: Values, *, where: Values, raise_by_one: str = "") -> None:
    """Update the one row that `where` names.

    :raises LookupError: if there is none.
    """
    database = connections[DEFAULT_DB_ALIAS]
    sql, converters = _update_sql(database.vendor, model, tuple(values), tuple(where), raise_by_one)
    with database.cursor() as cursor:
        cursor.execute(sql, _converted(converters, (*values.values(), *where.values()), database))
        if cursor.rowcount != 1:
            raise LookupError(f"no {model._meta.model_name} at {where}")


def lock_line(line: UUID) -> None:
    """Wait until no other run looks for effects of the line, until the transaction ends.

    Not a lock on a row: heartbeats lock the rows of many sessions at once. On SQLite a transaction has the only write
    lock from its beginning.
    """
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", [line.int % 2**63])


@lru_cache(maxsize=64)
def _fence_sql(vendor: str, names: tuple[str, ...]) -> Statement:
    table, unread = _quoted(Session._meta.db_table), _quoted(InboxMessage._meta.db_table)
    also = "".join(f", {_column(Session, name)} = %s" for name in names)
    sql = (
        f"UPDATE {table} SET position = position + %s, change = change + 1{also} "  # noqa: S608 - names of our own columns
        f"WHERE id = %s AND epoch = %s AND status = '{Status.RUNNING.value}' "
        f"RETURNING position, stop_request, (SELECT COUNT(*) FROM {unread} WHERE {unread}.session_id = {table}.id), "
        # Not "line IS NOT NULL": SQLite 3.40 takes that for true here, because of the partial index on it.
        "line, breakpoints"
    )
    return sql, _converters(Session, (*names, "id"))


@lru_cache(maxsize=256)
def _insert_sql(vendor: str, inserts: tuple[tuple[type[Model], tuple[str, ...], int], ...]) -> Statement:
    """One statement for all of them: PostgreSQL executes those in front of the last as its common table expressions."""
    statements: list[str] = []
    converters: list[Converter | None] = []
    for model, names, rows in inserts:
        columns = ", ".join(_column(model, name) for name in names)
        places = ", ".join([f"({', '.join(['%s'] * len(names))})"] * rows)
        statements.append(f"INSERT INTO {_quoted(model._meta.db_table)} ({columns}) VALUES {places}")  # noqa: S608 - our own columns
        converters += _converters(model, names) * rows
    first = ", ".join(f"rows{number} AS ({sql})" for number, sql in enumerate(statements[:-1]))
    return f"WITH {first} {statements[-1]}" if first else statements[-1], tuple(converters)


@lru_cache(maxsize=64)
def _update_sql(
    vendor: str, model: type[Model], names: tuple[str, ...], where: tuple[str, ...], raised: str
) -> Statement:
    sets = [f"{_column(model, name)} = %s" for name in names]
    if raised:
        sets.append(f"{_column(model, raised)} = {_column(model, raised)} + 1")
    tests = " AND ".join(f"{_column(model, name)} = %s" for name in where)
    sql = f"UPDATE {_quoted(model._meta.db_table)} SET {', '.join(sets)} WHERE {tests}"  # noqa: S608 - our own columns
    return sql, _converters(model, (*names, *where))


def _converters(model: type[Model], names: Sequence[str]) -> tuple[Converter | None, ...]:
    return tuple(_converter(_field(model, name), connection.vendor) for name in names)


def _converter(field: "Field[Any, Any]", vendor: str) -> Converter | None:
    """The function that converts a value as the ORM would; None where none is needed."""
    if isinstance(field, models.ForeignKey):
        return _converter(field.target_field, vendor)
    if isinstance(field, models.JSONField) and vendor == "sqlite":
        return _sqlite_json
    if isinstance(field, models.CharField | models.TextField | models.IntegerField | models.BooleanField):
        return None
    if isinstance(field, models.DateTimeField) and vendor == "sqlite":
        return _sqlite_datetime
    return field.get_db_prep_save


def _sqlite_json(value: Any, to: BaseDatabaseWrapper) -> str | None:
    return None if value is None else _json(value)


def _sqlite_datetime(value: datetime | None, to: BaseDatabaseWrapper) -> str | None:
    if value is None:
        return None
    in_utc = value if value.tzinfo is UTC else value.astimezone(UTC)
    return in_utc.isoformat(" ")[:-OFFSET]


def _converted(
    converters: Sequence[Converter | None], values: Sequence[Any], database: BaseDatabaseWrapper
) -> list[Any]:
    return [
        value if convert is None else convert(value, database)
        for convert, value in zip(converters, values, strict=True)
    ]


def _field(model: type[Model], name: str) -> "Field[Any, Any]":
    return next(field for field in model._meta.concrete_fields if name in (field.name, field.attname))


def _column(model: type[Model], name: str) -> str:
    return _quoted(str(_field(model, name).column))


def _quoted(name: str) -> str:
    return connection.ops.quote_name(name)
