"""A whole commit of a run that is known before it begins: the fence, and all that is written behind it.

The rows are drawn up with the positions that the fence is expected to give out, so the fence states in its WHERE clause
what that takes for granted of the session row. Where it does not hold nothing is written.

On PostgreSQL the commit is one statement, which the server begins and commits without waiting for this process. On
SQLite it is a transaction of few statements on one cursor, without what Django's `atomic` does for any transaction.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from uuid import UUID

from django.db import DEFAULT_DB_ALIAS, connections, transaction
from django.db.models import Model

from sessions_app.models import InboxMessage, Session
from sessions_app.models.columns import Converter, column, converted, converters_of, quoted, typed_place
from sessions_app.models.sql import Insert, Statement, equal, update_sql
from sessions_app.runtime import statements
from sessions_app.runtime.statements import Fence, Shape, Values, Writes

Row = tuple[Any, ...]
Kind = tuple[bool, bool, bool]  # whether a position, nothing that disturbs, and no unread message is expected
_IF_FENCED = " AND EXISTS (SELECT 1 FROM fence)"


@dataclass(frozen=True, slots=True)
class Expected:
    """What such a commit takes for granted of the session row.

    position: the last position given out before; None where the commit does not depend on it.
    undisturbed: no stop request, no breakpoints, and no forks.
    all_read: no unread messages.
    """

    position: int | None = None
    undisturbed: bool = False
    all_read: bool = False


def fence_and_write(
    session_id: UUID, epoch: int, positions: int, values: Values, writes: Writes, expected: Expected
) -> Fence | None:
    """Do what `statements.fence` does and write all of `writes`. None if nothing was written: where the claim is over,
    something else than `expected` holds or, on PostgreSQL, a row that is to be updated is not there.

    :raises LookupError: if it is not there, on SQLite; nothing was written.
    """
    database = connections[DEFAULT_DB_ALIAS]
    fenced = [positions, *values.values(), session_id, epoch]
    if expected.position is not None:
        fenced.append(expected.position)
    kind = (expected.position is not None, expected.undisturbed, expected.all_read)
    by = _by_statement if database.vendor == "postgresql" else _by_transaction
    row = by(database, tuple(values), kind, fenced, writes)
    return None if row is None else statements.fence_of(row)


def _by_statement(
    database: Any, names: tuple[str, ...], kind: Kind, fenced: list[Any], writes: Writes
) -> Row | None:
    """
    :param database: That of `agentstate.postgresql`.
    """
    inserts = tuple([(model, columns, len(rows)) for model, columns, rows in writes.inserts])
    updates = tuple([change.shape() for change in writes.updates])
    sql, converters = _statement_sql(names, kind, inserts, updates)
    parameters = [*fenced]
    for change in writes.updates:
        parameters += change.where.values()
    for _, _, rows in writes.inserts:
        parameters += [value for row in rows for value in row.values()]
    for change in writes.updates:
        parameters += (*change.values.values(), *change.where.values())
    with database.prepared_cursor() as cursor:
        cursor.execute(sql, converted(converters, parameters, database))
        row: Row | None = cursor.fetchone()
    return row


def _by_transaction(
    database: Any, names: tuple[str, ...], kind: Kind, fenced: list[Any], writes: Writes
) -> Row | None:
    sql, converters = _fence_sql(names, kind)
    values = converted(converters, fenced, database)
    if database.in_atomic_block:
        with database.cursor() as cursor, transaction.atomic():
            return _write(cursor, database, sql, values, writes)
    with database.plain_cursor() as cursor:
        try:
            cursor.execute("BEGIN IMMEDIATE")
            row = _write(cursor, database, sql, values, writes)
            cursor.execute("COMMIT")
        except BaseException:
            _roll_back(database)
            raise
    return row


def _roll_back(database: Any) -> None:
    """Or close the connection, which does it as well, if that fails: what has failed first is what is told."""
    try:
        database.connection.rollback()
    except BaseException:
        database.close()


def _write(cursor: Any, database: Any, sql: str, values: Sequence[Any], writes: Writes) -> Row | None:
    cursor.execute(sql, values)
    row: Row | None = cursor.fetchone()
    if row is not None:
        statements.write(cursor, database, writes)
    return row


@lru_cache(maxsize=64)
def _fence_sql(names: tuple[str, ...], kind: Kind) -> Statement:
    sql, converters = statements.fence_sql("sqlite", names, "".join(_tests(kind)))
    return sql, (*converters, *[None] * kind[0])


def _tests(kind: Kind) -> list[str]:
    has_position, undisturbed, all_read = kind
    tests = [" AND position = %s"] if has_position else []
    if undisturbed:
        tests.append(" AND stop_request = '' AND breakpoints IS NULL AND line IS NULL")
    if all_read:
        tests.append(
            f" AND NOT EXISTS (SELECT 1 FROM {quoted(InboxMessage._meta.db_table)} "  # noqa: S608 - our own table
            f"WHERE session_id = {quoted(Session._meta.db_table)}.id)"
        )
    return tests


@lru_cache(maxsize=256)
def _statement_sql(
    names: tuple[str, ...], kind: Kind, inserts: tuple[Insert, ...], updates: tuple[Shape, ...]
) -> Statement:
    """The fence, and each insert and update as a common table expression that writes only if the fence has a row.

    The fence has none where something that is to be updated is not there.
    """
    tests = _tests(kind)
    also: list[Converter | None] = [None] * kind[0]
    parts: list[str] = []
    converters: list[Converter | None] = []
    for model, columns, rows in inserts:
        parts.append(_guarded_insert(model, columns, rows))
        converters += converters_of(model, columns) * rows
    for model, columns, where, raised in updates:
        table = quoted(model._meta.db_table)
        tests.append(f" AND EXISTS (SELECT 1 FROM {table} WHERE {equal(model, where)})")  # noqa: S608 - our own columns
        also += converters_of(model, where)
        sql, own = update_sql("postgresql", model, columns, where, raised)
        parts.append(sql + _IF_FENCED)
        converters += own
    fence_sql, first = statements.fence_sql("postgresql", names, "".join(tests))
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
