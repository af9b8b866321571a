"""Django's PostgreSQL with a limited pool of connections: a thread has one only from its first query to `close`.

Django's own pool asks the server whether a connection is alive each time that one is handed out, which is another
round trip for every commit of a run, and Celery closes it behind each task of a forked worker, for all threads of that
process. Here a connection that was used a moment ago counts as alive, and a process keeps its pool until it ends.

``OPTIONS["connections"]`` is the limit; 0 or nothing is Django's way to connect. A thread that finds no connection
free waits for one, and gets an OperationalError after WAIT_SECONDS, also where the server is not to be reached.

`prepared_cursor` is for the few statements that are executed again and again: the server parses and plans each of them
once for a connection. All others are sent with their values in the text, as Django does.
"""

import atexit
import os
import threading
import time
from functools import lru_cache
from typing import Any

import psycopg
from django.db.backends.base.base import NO_DB_ALIAS
from django.db.backends.postgresql import base
from django.db.backends.utils import CursorWrapper
from psycopg.types.numeric import Int8Dumper
from psycopg_pool import ConnectionPool

WAIT_SECONDS = 10.0
# A connection that was returned no longer ago is handed out without asking the server.
ALIVE_SECONDS = 1.0
# Connections that nobody needed for so long are closed.
IDLE_SECONDS = 60.0
# A server that was away is tried again by the next query that needs a connection after this time.
RECONNECT_SECONDS = 1.0
# A statement that a connection has executed so often is prepared; what is executed once is not worth a round trip more.
PREPARED_AFTER = 3

# Else the server plans a prepared statement again for each of its first five executions.
PLANNED_ONCE = "-c plan_cache_mode=force_generic_plan"
# Else it compiles each statement that it expects to cost much, and starts parallel workers for it. Both take longer
# than the statement: the lists of the desk may read far more than they do, since they end at a page or a count.
NO_JIT_NO_HELPERS = "-c jit=off -c max_parallel_workers_per_gather=0"

Key = tuple[str, ...]


class PooledConnection(psycopg.Connection[Any]):
    """A connection that knows when it was last returned to its pool."""

    returned_at = float("-inf")


class PreparedCursor(psycopg.RawCursor[Any]):
    """Takes statements with ``%s`` as Django does, which hold no other percent sign, and sends their values separately.

    It is a raw cursor because psycopg's other cursors parse a long statement again each time it is executed.
    """

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        super().__init__(connection)
        # Else a number of another size would be another statement to the server.
        self.adapters.register_dumper(int, Int8Dumper)

    def execute(self, query: Any, params: Any = None, **options: Any) -> Any:
        return super().execute(_numbered(query), params, **options)


@lru_cache(maxsize=1024)
def _numbered(statement: str) -> bytes:
    """The statement with ``$1``, ``$2`` and so on, as the server takes it."""
    first, *rest = statement.split("%s")
    return (first + "".join(f"${number}{part}" for number, part in enumerate(rest, start=1))).encode()


class DatabaseWrapper(base.DatabaseWrapper):
    """One thread's connection, or none."""

    @property
    def pool(self) -> "ConnectionPool[PooledConnection] | None":
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
        parameters = super().get_connection_params()
        parameters.pop("connections", None)
        if parameters["prepare_threshold"] is None:
            parameters["prepare_threshold"] = PREPARED_AFTER
        # The last one counts where an option is given twice.
        parameters["options"] = f"{PLANNED_ONCE} {NO_JIT_NO_HELPERS} {parameters.get('options', '')}".strip()
        return parameters

    def prepared_cursor(self) -> CursorWrapper:
        """A cursor for statements that the server parses and plans once for a connection."""
        self.ensure_connection()
        with self.wrap_database_errors:
            cursor: CursorWrapper = self._prepare_cursor(PreparedCursor(self.connection))  # type: ignore[attr-defined]
        return cursor

    def _close(self) -> None:
        if isinstance(self.connection, PooledConnection):
            self.connection.returned_at = time.monotonic()
        super()._close()  # type: ignore[misc]

    @property
    def _key(self) -> Key:
        """Tests change the name of the database."""
        return (self.alias, *(str(self.settings_dict[name]) for name in ("HOST", "PORT", "NAME")))

    def _new_pool(self, size: int) -> "ConnectionPool[PooledConnection]":
        return ConnectionPool(
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
    if time.monotonic() - connection.returned_at > ALIVE_SECONDS:
        ConnectionPool.check_connection(connection)


_pools: dict[Key, "ConnectionPool[PooledConnection]"] = {}
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
