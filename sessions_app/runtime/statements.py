"""The few statements that every step of every session executes, built once per process.

The ORM builds a statement again for each call, which costs more than executing it. Here the SQL is built from the
models' fields and cached; values are converted by the fields, as the ORM would convert them. On PostgreSQL a whole
commit of a run can be one statement (`fence_and_write`).
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
from django.db.models import Model

from agentstate.durable.breakpoints import stored_breakpoints
from agentstate.durable.records import Signals
from sessions_app.models import InboxMessage, Session, Status
from sessions_app.runtime.columns import Converter, column, converted, converters_of, quoted, typed_place

Values = dict[str, Any]
Statement = tuple[str, tuple[Converter | None, ...]]
Rows = list[tuple[type[Model], tuple[str, ...], list[Values]]]
Shape = tuple[
    type[Model], tuple[str, ...], tuple[str, ...], str
]  # of an update: its model and the names in it
Insert = tuple[type[Model], tuple[str, ...], int]  # the model, the columns and the number of rows
_collected: ContextVar["Writes | None"] = ContextVar("agentstate_collected_writes", default=None)
_IF_FENCED = " AND EXISTS (SELECT 1 FROM fence)"
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


@dataclass(frozen=True, slots=True)
class Expected:
    """What a commit that is one statement takes for granted of the session row. Where it does not hold, the statement
    writes nothing.

    position: the last position given out before; None where the commit does not depend on it.
    undisturbed: no stop request, no breakpoints, and no forks.
    all_read: no unread messages.
    """

    position: int | None = None
    undisturbed: bool = False
    all_read: bool = False


def fence(session_id: UUID, epoch: int, positions: int, values: Values) -> Fence | None:
    """Take so many new positions for the run of this epoch, and set `values`; None if its claim is over.

    Locks the session row until the transaction ends. The new positions are the last ones up to `Fence.position`.
    """
    database = connections[DEFAULT_DB_ALIAS]
    sql, converters = _fence_sql(database.vendor, tuple(values))
    parameters = (positions, *values.values(), session_id, epoch)
    with database.cursor() as cursor:
        cursor.execute(sql, converted(converters, parameters, database))
        row = cursor.fetchone()
    return None if row is None else _fence_of(row)


def fence_and_write(
    session_id: UUID, epoch: int, positions: int, values: Values, writes: Writes, expected: Expected
) -> Fence | None:
    """Do what `fence` does and write all of `writes`, by one statement of PostgreSQL; None if it has written nothing.

    Sent where no transaction is open, the server begins and commits it without waiting for this process. It writes
    everything or nothing: each part writes only beside the row that the fence returns, and the fence returns none where
    something that is to be updated is not there.
    """
    database: Any = connections[DEFAULT_DB_ALIAS]  # that of `agentstate.postgresql`
    inserts = tuple([(model, names, len(rows)) for model, names, rows in writes.inserts])
    updates = tuple([change.shape() for change in writes.updates])
    kind = (expected.position is not None, expected.undisturbed, expected.all_read)
    sql, converters = _commit_sql(tuple(values), kind, inserts, updates)
    parameters = [positions, *values.values(), session_id, epoch]
    if expected.position is not None:
        parameters.append(expected.position)
    for change in writes.updates:
        parameters += change.where.values()
    for _, _, rows in writes.inserts:
        parameters += [value for row in rows for value in row.values()]
    for change in writes.updates:
        parameters += (*change.values.values(), *change.where.values())
    with database.prepared_cursor() as cursor:
        cursor.execute(sql, converted(converters, parameters, database))
        row = cursor.fetchone()
    return None if row is None else _fence_of(row)


def _fence_of(row: tuple[Any, ...]) -> Fence:
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
        _insert_all([(model, tuple(rows[0]), rows)])
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
        _update(change)
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
    """Insert what is inserted inside at the end, in as few statements as the database takes: on PostgreSQL in one."""
    with collected() as writes:
        yield
    if writes.inserts:
        _insert_all(writes.inserts)
    for change in writes.updates:
        _update(change)


def _insert_all(inserts: Rows) -> None:
    # Not with executemany: psycopg runs it as a pipeline, after which PostgreSQL no longer ends an idle transaction.
    batches = inserts
    few = Writes(inserts).are_few()
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
            cursor.execute(sql, converted(converters, values, database))


def _update(change: Update) -> None:
    database = connections[DEFAULT_DB_ALIAS]
    sql, converters = _update_sql(database.vendor, *change.shape())
    values = (*change.values.values(), *change.where.values())
    with database.cursor() as cursor:
        cursor.execute(sql, converted(converters, values, database))
        if cursor.rowcount != 1:
            raise LookupError(f"no {change.model._meta.model_name} at {change.where}")


def lock_line(line: UUID) -> None:
    """Wait until no other run looks for effects of the line, until the transaction ends.

    Not a lock on a row: heartbeats lock the rows of many sessions at once. On SQLite a transaction has the only write
    lock from its beginning.
    """
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", [line.int % 2**63])


@lru_cache(maxsize=64)
def _fence_sql(vendor: str, names: tuple[str, ...], more_tests: str = "") -> Statement:
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


@lru_cache(maxsize=256)
def _commit_sql(
    names: tuple[str, ...],
    expected: tuple[bool, bool, bool],
    inserts: tuple[Insert, ...],
    updates: tuple[Shape, ...],
) -> Statement:
    """The fence, and each insert and update as a common table expression that writes only if the fence has a row."""
    has_position, undisturbed, all_read = expected
    tests = [" AND position = %s"] if has_position else []
    if undisturbed:
        tests.append(" AND stop_request = '' AND breakpoints IS NULL AND line IS NULL")
    if all_read:
        tests.append(
            f" AND NOT EXISTS (SELECT 1 FROM {quoted(InboxMessage._meta.db_table)} "  # noqa: S608 - our own table
            f"WHERE session_id = {quoted(Session._meta.db_table)}.id)"
        )
    also: list[Converter | None] = [None] * has_position
    parts: list[str] = []
    converters: list[Converter | None] = []
    for model, columns, rows in inserts:
        parts.append(_guarded_insert(model, columns, rows))
        converters += converters_of(model, columns) * rows
    for model, columns, where, raised in updates:
        table = quoted(model._meta.db_table)
        tests.append(f" AND EXISTS (SELECT 1 FROM {table} WHERE {_equal(model, where)})")  # noqa: S608 - our own columns
        also += converters_of(model, where)
        sql, own = _update_sql("postgresql", model, columns, where, raised)
        parts.append(sql + _IF_FENCED)
        converters += own
    fence_sql, first = _fence_sql("postgresql", names, "".join(tests))
    writes = "".join(f", write{number} AS ({part})" for number, part in enumerate(parts))
    sql = f"WITH fence AS ({fence_sql}){writes} SELECT * FROM fence"  # noqa: S608 - put together above
    return sql, (*first, *also, *converters)


def _guarded_insert(model: type[Model], names: Sequence[str], rows: int) -> str:
    columns = ", ".join(column(model, name) for name in names)
    first = ", ".join(typed_place(model, name) for name in names)
    rest = f", ({', '.join(['%s'] * len(names))})" * (rows - 1)
    return (
        f"INSERT INTO {quoted(model._meta.db_table)} ({columns}) "  # noqa: S608 - our own columns
        f"SELECT * FROM (VALUES ({first}){rest}) AS given WHERE true{_IF_FENCED}"
    )


@lru_cache(maxsize=256)
def _insert_sql(vendor: str, inserts: tuple[Insert, ...]) -> Statement:
    """One statement for all of them: PostgreSQL executes those in front of the last as its common table expressions."""
    statements: list[str] = []
    converters: list[Converter | None] = []
    for model, names, rows in inserts:
        columns = ", ".join(column(model, name) for name in names)
        places = ", ".join([f"({', '.join(['%s'] * len(names))})"] * rows)
        statements.append(f"INSERT INTO {quoted(model._meta.db_table)} ({columns}) VALUES {places}")  # noqa: S608 - our own columns
        converters += converters_of(model, names) * rows
    first = ", ".join(f"rows{number} AS ({sql})" for number, sql in enumerate(statements[:-1]))
    return f"WITH {first} {statements[-1]}" if first else statements[-1], tuple(converters)


@lru_cache(maxsize=64)
def _update_sql(
    vendor: str, model: type[Model], names: tuple[str, ...], where: tuple[str, ...], raised: str
) -> Statement:
    sets = [f"{column(model, name)} = %s" for name in names]
    if raised:
        sets.append(f"{column(model, raised)} = {column(model, raised)} + 1")
    sql = f"UPDATE {quoted(model._meta.db_table)} SET {', '.join(sets)} WHERE {_equal(model, where)}"  # noqa: S608 - our own columns
    return sql, converters_of(model, (*names, *where))


def _equal(model: type[Model], names: Sequence[str]) -> str:
    return " AND ".join(f"{column(model, name)} = %s" for name in names)
