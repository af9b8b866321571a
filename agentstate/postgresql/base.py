"""Django's PostgreSQL with a limited pool of connections: a thread has one only from its first query to `close`.

Django's own pool asks the server whether a connection is alive each time that one is handed out, which is another
round trip for every commit of a run, and Celery closes it behind each task of a forked worker, for all threads of that
process. Here a connection that was used a moment ago counts as alive, and a process keeps its pool until it ends.

``OPTIONS["connections"]`` is the limit; 0 or nothing is Django's way to connect. A thread that finds no connection
free waits for one, and gets an OperationalError after WAIT_SECONDS, also where the server is not to be reached.

`prepared_cursor` is for the statements that are executed again and again: the server parses and plans each of them once
for a connection. All others are sent with their values in the text, as Django does. `compiler` and the compiled queries
of `sessions_app.models` use it.
"""

import atexit
import os
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC
from typing import Any

import psycopg
from django.db import transaction
from django.db.backends.base.base import NO_DB_ALIAS
from django.db.backends.postgresql import base, operations
from django.db.backends.utils import CursorWrapper, debug_transaction
from psycopg.types.numeric import Int8Dumper
from psycopg_pool import ConnectionPool

from agentstate.postgresql.later import LaterWrites
from agentstate.postgresql.prepared import Prepared, PreparedCursor, numbered
from agentstate.postgresql.times import reading_utc

WAIT_SECONDS = 10.0
# A connection that was returned no longer ago is handed out without asking the server.
ALIVE_SECONDS = 1.0
# Connections that nobody needed for so long are closed.
IDLE_SECONDS = 60.0
# A server that is away is tried again after this time, as long as somebody may wait for a connection.
RECONNECT_SECONDS = 1.0
# A statement that a connection has executed so often is prepared; what is executed once is not worth a round trip more.
PREPARED_AFTER = 1
# More than the desk and the runs have: so many are counted and kept. The plan of one takes some 70 KB of the server.
MOST_PREPARED = 300

# Else the server plans a prepared statement again for each of its first five executions.
PLANNED_ONCE = "-c plan_cache_mode=force_generic_plan"
# Else it compiles each statement that it expects to cost much, and starts parallel workers for it. Both take longer
# than the statement: the lists of the desk may read far more than they do, since they end at a page or a count.
NO_JIT_NO_HELPERS = "-c jit=off -c max_parallel_workers_per_gather=0"

Key = tuple[Any, ...]


class PooledConnection(psycopg.Connection[Any]):
    """A connection that knows when it was made, or last returned to its pool."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.returned_at = time.monotonic()


class Pool(ConnectionPool[PooledConnection]):
    """Tries again and again while somebody waits. psycopg gives up, and wakes nobody before another one asks."""

    _asked_at = float("-inf")
    # When a connection was last found to have ended while it was used.
    lost_at = float("-inf")

    def getconn(self, timeout: float | None = None) -> PooledConnection:
        self._asked_at = time.monotonic()
        return super().getconn(timeout)

    def reconnect_failed(self) -> None:
        if time.monotonic() < self._asked_at + self.timeout:
            self.check()


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
            return super().create_cursor(name)
        # To psycopg, a transaction with a lock timeout is in autocommit mode, in which such a cursor would outlive it.
        cursor_class: Any = base.ServerSideCursor
        return cursor_class(self.connection, name=name, scrollable=False, withhold=False)

    @property
    def pool(self) -> Pool | None:
        """The pool of this process for this database."""
        size = self.settings_dict["OPTIONS"].get("connections")
        if self.alias == NO_DB_ALIAS or not size:
            return None
        pool = _pools.get(self._key)
        if pool is None:
            with _making:
                pool = _pools.get(self._key) or _pools.setdefault(self._key, self._new_pool(size))
        return pool

    def close_pool(self) -> None:
        pool = _pools.pop(self._key, None)
        if pool is not None:
            pool.close()

    def get_connection_params(self) -> dict[str, Any]:
        # Django asks for them with each connection, also where the pool has one.
        if self._parameters is None or self._parameters[0] != self._key:
            self._parameters = self._key, self._new_parameters()
        return {**self._parameters[1]}

    def _new_parameters(self) -> dict[str, Any]:
        parameters: dict[str, Any] = super().get_connection_params()
        parameters.pop("connections", None)
        if parameters["prepare_threshold"] is None:
            parameters["prepare_threshold"] = PREPARED_AFTER
        if self.timezone is UTC:
            parameters["context"] = reading_utc(parameters["context"])
        # The last one counts where an option is given twice.
        parameters["options"] = f"{PLANNED_ONCE} {NO_JIT_NO_HELPERS} {parameters.get('options', '')}".strip()
        return parameters

    def get_new_connection(self, conn_params: dict[str, Any]) -> Any:
        connection = super().get_new_connection(conn_params)
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

    def _close(self) -> None:
        if isinstance(self.connection, PooledConnection):
            self.connection.returned_at = time.monotonic()
            if self.connection.broken and self.pool is not None:
                self.pool.lost_at = self.connection.returned_at
        super()._close()

    @property
    def _key(self) -> Key:
        """Tests change the name of the database."""
        settings = self.settings_dict
        return self.alias, settings["HOST"], settings["PORT"], settings["NAME"]

    def _new_pool(self, size: int) -> Pool:
        return Pool(
            connection_class=PooledConnection,
            kwargs={**self.get_connection_params(), "autocommit": True},
            configure=self._configure_connection,  # type: ignore[attr-defined]
            check=_check,
            open=False,
            min_size=0,
            max_size=size,
            timeout=WAIT_SECONDS,
            max_idle=IDLE_SECONDS,
            reconnect_timeout=RECONNECT_SECONDS,
            num_workers=1,
        )


def _check(connection: PooledConnection) -> None:
    pool: Any = connection._pool
    # What was idle when another one was found to have ended may have ended as well.
    alive_since = max(time.monotonic() - ALIVE_SECONDS, pool.lost_at)
    if connection.returned_at >= alive_since:
        return
    try:
        Pool.check_connection(connection)
    except psycopg.Error:
        # After a restart of the server all of them have ended. psycopg would find them one after the other, and wait
        # for longer behind each.
        pool.check()
        raise


_pools: dict[Key, Pool] = {}
_making = threading.Lock()
# Pools of the process that this one was forked from. Their connections are its own, so they are never closed here.
_inherited: list[object] = []


def _after_fork() -> None:
    global _pools, _making
    _inherited.append(_pools)
    _pools, _making = {}, threading.Lock()


@atexit.register
def _close_pools() -> None:
    """The threads of a pool do not outlive the interpreter quietly."""
    while _pools:
        _pools.popitem()[1].close()


os.register_at_fork(after_in_child=_after_fork)
