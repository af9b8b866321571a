"""Django's PostgreSQL with a limited pool of connections: a thread has one only from its first query to `close`.

Django's own pool asks the server whether a connection is alive each time that one is handed out, which is another
round trip for every commit of a run, and Celery closes it behind each task of a forked worker, for all threads of that
process. The pools of `agentstate.postgresql.pool` do neither. ``OPTIONS["connections"]`` is the limit of one; 0 or
nothing is Django's way to connect.

`prepared_cursor` is for the statements that are executed again and again: the server parses and plans each of them once
for a connection. All others are sent with their values in the text, as Django does. `compiler` and the compiled queries
of `sessions_app.models` use it.
"""

import gc
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC
from typing import Any
from weakref import WeakSet

from django.db import InterfaceError, transaction
from django.db.backends.base.base import NO_DB_ALIAS
from django.db.backends.postgresql import base, operations
from django.db.backends.utils import CursorWrapper, debug_transaction
from psycopg.types.numeric import Int8Dumper

from agentstate.postgresql.later import LaterWrites
from agentstate.postgresql.pool import Key, Pool, close_pool, give_back, leave, pool_of
from agentstate.postgresql.pooled import PooledConnection, Stay
from agentstate.postgresql.prepared import Prepared, PreparedCursor, numbered
from agentstate.postgresql.times import reading_utc

# A statement that a connection has executed so often is prepared; what is executed once is not worth a round trip more.
PREPARED_AFTER = 1
# More than the desk and the runs have: so many are counted and kept. The plan of one takes some 70 KB of the server.
MOST_PREPARED = 300

# Else the server plans a prepared statement again for each of its first five executions.
PLANNED_ONCE = "-c plan_cache_mode=force_generic_plan"
# Else it compiles each statement that it expects to cost much, and starts parallel workers for it. Both take longer
# than the statement: the lists of the desk may read far more than they do, since they end at a page or a count.
NO_JIT_NO_HELPERS = "-c jit=off -c max_parallel_workers_per_gather=0"

# Of a server that has gone away without a word, such as the former one after a failover, the system would tell after
# two minutes while it connects, and after a quarter of an hour or two hours later on. In seconds, but for the last one.
GIVEN_UP = {
    "connect_timeout": 5,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}


FORKED_IN_A_TRANSACTION = (
    "This process was forked inside of a transaction, which belongs to its parent. "
    "It can use the database when it has left the block of that transaction, or has set autocommit again."
)


class DatabaseOperations(operations.DatabaseOperations):
    compiler_module = "agentstate.postgresql.compiler"

    def last_executed_query(self, cursor: Any, sql: Any, params: Any) -> Any:
        """For logs. psycopg does not remember what it has executed as a prepared statement."""
        if isinstance(sql, bytes):
            return f"{sql.decode()} -- {', '.join(map(repr, params))}"
        if isinstance(cursor, PreparedCursor):
            return self.compose_sql(sql, params)
        return super().last_executed_query(cursor, sql, params)


class DatabaseWrapper(LaterWrites):
    """One thread's connection, or none."""

    ops_class = DatabaseOperations
    _parameters: tuple[Key, dict[str, Any]] | None = None
    _begin = ""
    # Of the connection in its pool, since this has taken it.
    _stay: Stay | None = None
    _ends = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._cursors: WeakSet[Any] = WeakSet()

    @contextmanager
    def atomic_with_lock_timeout(self, milliseconds: int, *, durable: bool = False) -> Iterator[None]:
        """Like `atomic` of Django; the transaction waits so long at most for each lock."""
        limit = f"SET LOCAL lock_timeout = {milliseconds}"
        if self.in_atomic_block or not self.get_autocommit():
            with transaction.atomic(self.alias, durable=durable):
                with self.cursor() as cursor:
                    cursor.execute(limit)
                yield
            return
        self._begin = f"BEGIN; {limit}"
        try:
            with transaction.atomic(self.alias, durable=durable):
                yield
        finally:
            self._begin = ""

    def _start_transaction_under_autocommit(self) -> None:
        """Called by Django to begin a transaction. Two statements in one text need one round trip."""
        begin, self._begin = self._begin, ""  # not that of a transaction which a hook of this one begins
        if not begin:
            with debug_transaction(self, "BEGIN"):
                self._set_autocommit(False)  # type: ignore[attr-defined]
            return
        try:
            with debug_transaction(self, begin), self.wrap_database_errors:
                self.connection.execute(begin)
        except BaseException:
            # To Django no transaction has begun yet: it would neither roll back nor see that the connection is dead.
            self.close()
            raise

    def create_cursor(self, name: str | None = None) -> Any:
        if name is None or self.autocommit:
            cursor = super().create_cursor(name)
        else:
            # To psycopg, a transaction with a lock timeout is in autocommit mode, in which it would outlive that.
            cursor_class: Any = base.ServerSideCursor
            cursor = cursor_class(self.connection, name=name, scrollable=False, withhold=False)
        self._cursors.add(cursor)
        return cursor

    @property
    def pool(self) -> Pool | None:
        """The pool of this process for this database."""
        size = self.settings_dict["OPTIONS"].get("connections")
        if self.alias == NO_DB_ALIAS or not size:
            return None
        return pool_of(self._key, lambda: self._new_pool(size))

    def close_pool(self) -> None:
        """Close the pool of this database in this process, and what was left behind of it. Django calls this before it
        deletes the database of a test run.
        """
        close_pool(self._key)
        # Processes leave what they have imported out of collections, and so what was left behind by then.
        gc.unfreeze()
        gc.collect()

    def set_autocommit(
        self, autocommit: bool, force_begin_transaction_with_broken_autocommit: bool = False
    ) -> None:
        if autocommit and not self.in_atomic_block:
            self._leaves_that_of_the_parent()
        # So ends a transaction whose connection was lost: there is nothing to be set before the next query, and to wait
        # for another connection would keep the error from whoever is to hear of it.
        if autocommit and self.connection is None and not self.run_commit_hooks_on_set_autocommit_on:
            self.validate_no_atomic_block()
            self.autocommit = True
            return
        super().set_autocommit(autocommit, force_begin_transaction_with_broken_autocommit)

    def get_connection_params(self) -> dict[str, Any]:
        # Django asks for them with each connection, also where the pool has one.
        if self._parameters is None or self._parameters[0] != self._key:
            self._parameters = self._key, self._new_parameters()
        return {**self._parameters[1]}

    def _new_parameters(self) -> dict[str, Any]:
        parameters: dict[str, Any] = super().get_connection_params()
        parameters.pop("connections", None)
        parameters = {**GIVEN_UP, **parameters}
        if parameters["prepare_threshold"] is None:
            parameters["prepare_threshold"] = PREPARED_AFTER
        if self.timezone is UTC:
            parameters["context"] = reading_utc(parameters["context"])
        # The last one counts where an option is given twice.
        parameters["options"] = f"{PLANNED_ONCE} {NO_JIT_NO_HELPERS} {parameters.get('options', '')}".strip()
        return parameters

    def get_new_connection(self, conn_params: dict[str, Any]) -> Any:
        connection = super().get_new_connection(conn_params)
        self._stay = connection.stay if isinstance(connection, PooledConnection) else None
        if connection.prepared_max != MOST_PREPARED:  # it is new, also to the pool
            connection.prepared_max = MOST_PREPARED
            # Else a number of another size would be another statement to the server.
            connection.adapters.register_dumper(int, Int8Dumper)
        return connection

    def prepared_cursor(self) -> CursorWrapper:
        """A cursor for statements that the server parses and plans once for a connection."""
        self.execute_later_writes()
        self.ensure_connection()
        return self.new_prepared_cursor()

    def prepared(self) -> Prepared:
        """This connection, for a compiler whose statements are to be prepared."""
        return Prepared(self)

    def numbered(self, statement: str, values: Sequence[Any], places: Collection[int]) -> bytes:
        """The statement for a `prepared_cursor`: see `prepared.numbered`."""
        self.ensure_connection()
        return numbered(self.connection, statement, values, places)

    def ensure_connection(self) -> None:
        """
        :raises InterfaceError: in a process that was forked inside of a transaction, until it has left that.
        """
        if self._is_inherited:
            if self.in_atomic_block or not self.autocommit:
                raise InterfaceError(FORKED_IN_A_TRANSACTION)
            self.close()
        super().ensure_connection()

    def _close(self) -> None:
        self._later.clear()
        if self._is_inherited:
            leave(self.connection)
            self.connection = self._stay = None
            self._cursors.clear()
        if self._stay is None:
            super()._close()
            return
        # Else a half-read iterator would fetch rows, or close its cursor, in the transaction of the next user.
        is_in_use = any(not cursor.closed for cursor in [*self._cursors])
        self._cursors.clear()
        # Another thread that closes this at the same time does not return the connection again.
        with self.wrap_database_errors:
            give_back(self._stay, for_good=self._ends or is_in_use)
        self.connection = None

    def close_for_good(self) -> None:
        """Like `close`. The connection is not used again, so that what was set for it ends with it."""
        self._ends = True
        try:
            self.close()
        finally:
            self._ends = False

    @property
    def _is_inherited(self) -> bool:
        """Whether it has the connection of the process that this one was forked from, which it must not use."""
        return isinstance(self.connection, PooledConnection) and self.connection.is_inherited

    def _commit(self) -> None:
        if not self._leaves_that_of_the_parent():
            super()._commit()

    def _rollback(self) -> None:
        if not self._leaves_that_of_the_parent():
            super()._rollback()

    def savepoint_commit(self, sid: str) -> None:
        if not self._leaves_that_of_the_parent():
            super().savepoint_commit(sid)

    def savepoint_rollback(self, sid: str) -> None:
        if not self._leaves_that_of_the_parent():
            super().savepoint_rollback(sid)

    def _leaves_that_of_the_parent(self) -> bool:
        """Whether the transaction was that of the process that this one was forked from. Here it is over then; this
        process cannot have written anything in it.
        """
        inherited = self._is_inherited
        if inherited:
            self.close()
        return inherited

    @property
    def _key(self) -> Key:
        """Tests change the name of the database."""
        settings = self.settings_dict
        return self.alias, settings["HOST"], settings["PORT"], settings["NAME"]

    def _new_pool(self, size: int) -> Pool:
        parameters = {**self.get_connection_params(), "autocommit": True}
        # The pool outlives this, and would keep it and its connection.
        return Pool.new(parameters, size, self.copy()._configure_connection)  # type: ignore[attr-defined]
