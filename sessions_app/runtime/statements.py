"""The few statements that every step of every session executes, built once per process.

The ORM builds a statement again for each call, which costs more than executing it. Here the SQL is built from the
models' fields and cached; values are converted by the fields, as the ORM would convert them.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any
from uuid import UUID

from django.db import DEFAULT_DB_ALIAS, connection, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Model

from agentstate.durable.records import Signals
from sessions_app.models import InboxMessage, Session, Status
from sessions_app.models.columns import column, converted, converters_of, quoted
from sessions_app.models.compiled import prepared_cursor
from sessions_app.models.sql import Statement, insert_sql, update_sql
from sessions_app.runtime import session_breakpoints

Values = dict[str, Any]
Rows = list[tuple[type[Model], tuple[str, ...], list[Values]]]
Shape = tuple[
    type[Model], tuple[str, ...], tuple[str, ...], str
]  # of an update: its model and the names in it
_collected: ContextVar["Writes | None"] = ContextVar("agentstate_collected_writes", default=None)
# Rows of one INSERT: SQLite takes 32,766 values, PostgreSQL 65,535.
ROWS_AT_ONCE = 100


@dataclass(frozen=True, slots=True)
class Fence:
    """What the session row holds: the last position given out, a stop request, the number of unread messages, the key
    `Session.line` as the driver returns it (None for a session without forks that is none), and the breakpoints.
    """

    position: int
    stop_request: str
    unread: int
    line: str | UUID | None
    breakpoints: Sequence[dict[str, Any]] = ()

    def signals(self) -> Signals:
        return Signals(self.stop_request, self.unread > 0, session_breakpoints.of_rows(self.breakpoints))


@dataclass(slots=True)
class Update:
    """An update of the one row that `where` names."""

    model: type[Model]
    values: Values
    where: Values
    raise_by_one: str

    def shape(self) -> Shape:
        return self.model, tuple(self.values), tuple(self.where), self.raise_by_one


@dataclass(slots=True)
class Writes:
    """Rows to insert, and updates of single rows."""

    inserts: Rows = field(default_factory=list)
    updates: list[Update] = field(default_factory=list)

    def are_few(self) -> bool:
        return sum([len(rows) for _, _, rows in self.inserts]) <= ROWS_AT_ONCE


def fence(session_id: UUID, epoch: int, positions: int, values: Values) -> Fence | None:
    """Take so many new positions for the run of this epoch, and set `values`; None if its claim is over.

    Locks the session row until the transaction ends. The new positions are the last ones up to `Fence.position`.
    """
    database = connections[DEFAULT_DB_ALIAS]
    sql, converters = fence_sql(database.vendor, tuple(values))
    parameters = (positions, *values.values(), session_id, epoch)
    with prepared_cursor(database) as cursor:
        cursor.execute(sql, converted(converters, parameters, database))
        row = cursor.fetchone()
    return None if row is None else fence_of(row)


def fence_of(row: tuple[Any, ...]) -> Fence:
    position, stop_request, unread, line, breakpoints = row
    if isinstance(breakpoints, str):
        breakpoints = json.loads(breakpoints)
    return Fence(position, stop_request, unread, line, breakpoints or ())


def insert(model: type[Model], rows: list[Values]) -> None:
    """Insert rows that all have the same columns; a foreign key is named by its column, as in ``branch_id``.

    Inside `collected` they are kept for later, and inside `together` inserted at its end.
    """
    collected_writes = _collected.get()
    if not rows:
        return
    if collected_writes is None:
        _write(Writes([(model, tuple(rows[0]), rows)]))
        return
    for other, names, others in collected_writes.inserts:
        if other is model and names == tuple(rows[0]):
            others.extend(rows)
            return
    collected_writes.inserts.append((model, tuple(rows[0]), [*rows]))


def update(model: type[Model], values: Values, *, where: Values, raise_by_one: str = "") -> None:
    """Update the one row that `where` names, inside `collected` and `together` later, as rows are inserted.

    :raises LookupError: if there is none.
    """
    collected_writes = _collected.get()
    change = Update(model, values, where, raise_by_one)
    if collected_writes is None:
        _write(Writes(updates=[change]))
    else:
        collected_writes.updates.append(change)


@contextmanager
def collected() -> Iterator[Writes]:
    """Execute nothing of what is inserted and updated inside; it is what the context returns."""
    writes = Writes()
    token = _collected.set(writes)
    try:
        yield writes
    finally:
        _collected.reset(token)


@contextmanager
def together() -> Iterator[None]:
    """Write what is inserted and updated inside at the end, in as few statements as the database takes: on PostgreSQL
    the rows in one.
    """
    with collected() as writes:
        yield
    if writes.inserts or writes.updates:
        _write(writes)


def _write(writes: Writes) -> None:
    database = connections[DEFAULT_DB_ALIAS]
    with prepared_cursor(database) as cursor:
        write(cursor, database, writes)


def write(cursor: Any, database: BaseDatabaseWrapper, writes: Writes) -> None:
    """Insert the rows, then make the updates.

    :raises LookupError: if a row that is to be updated is not there.
    """
    # Not with executemany: psycopg runs it as a pipeline, after which PostgreSQL no longer ends an idle transaction.
    batches = writes.inserts
    few = writes.are_few()
    if not few:
        batches = [
            (model, names, rows[start : start + ROWS_AT_ONCE])
            for model, names, rows in writes.inserts
            for start in range(0, len(rows), ROWS_AT_ONCE)
        ]
    as_one = bool(batches) and few and database.vendor == "postgresql"
    for parts in [batches] if as_one else [[batch] for batch in batches]:
        lengths = tuple([(model, names, len(rows)) for model, names, rows in parts])
        sql, converters = insert_sql(database.vendor, lengths)
        values = [value for _, _, rows in parts for row in rows for value in row.values()]
        cursor.execute(sql, converted(converters, values, database))
    for change in writes.updates:
        sql, converters = update_sql(database.vendor, *change.shape())
        changed = (*change.values.values(), *change.where.values())
        cursor.execute(sql, converted(converters, changed, database))
        if cursor.rowcount != 1:
            raise LookupError(f"no {change.model._meta.model_name} at {change.where}")


def lock_line(line: UUID) -> None:
    """Wait until no run of another session that shares the history by a fork looks for effects; held until the
    transaction ends.

    Not a lock on a row: heartbeats lock the rows of many sessions at once. On SQLite a transaction has the only write
    lock from its beginning.
    """
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", [line.int % 2**63])


@lru_cache(maxsize=64)
def fence_sql(vendor: str, names: tuple[str, ...], more_tests: str = "") -> Statement:
    table, unread = quoted(Session._meta.db_table), quoted(InboxMessage._meta.db_table)
    also = "".join(f", {column(Session, name)} = %s" for name in names)
    sql = (
        f"UPDATE {table} SET position = position + %s, change = change + 1{also} "  # noqa: S608 - names of our own columns
        f"WHERE id = %s AND epoch = %s AND status = '{Status.RUNNING.value}'{more_tests} "
        f"RETURNING position, stop_request, (SELECT COUNT(*) FROM {unread} WHERE {unread}.session_id = {table}.id), "
        # Not "line IS NOT NULL": SQLite 3.40 takes that for true here, because of the partial index on it.
        "line, breakpoints"
    )
    return sql, (None, *converters_of(Session, (*names, "id")), None)
