"""The pools of connections of this process, one for each database.

A connection belongs to the thread that took it from its pool, until that thread returns it, or ends: a tool may query
the database in threads of its own, which know nothing of pools. One that was used a moment ago is handed out without
asking the server whether it is alive. A forked process has pools of its own, and never touches a connection that it has
inherited.

A thread that finds no connection free waits for one, and gets an error after WAIT_SECONDS, also where the server is not
to be reached. A server that is reached, and then does not answer, is waited for, as by a thread that has a connection.
"""

import atexit
import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Any
from weakref import ref

import psycopg
from psycopg_pool import ConnectionPool

logger = logging.getLogger(__name__)

WAIT_SECONDS = 10.0
# A connection that was returned no longer ago is handed out without asking the server.
ALIVE_SECONDS = 1.0
# As often as this, a connection is closed that nobody needed since.
IDLE_SECONDS = 60.0
# A server that is away is tried again after this time, as long as somebody may wait for a connection.
RECONNECT_SECONDS = 1.0

Key = tuple[Any, ...]


class PooledConnection(psycopg.Connection[Any]):
    """A connection that knows whose it is, and since when it is known to be alive."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.process = os.getpid()
        self.holder: ref[_HeldByThread] | None = None
        self.taken_at = self.alive_at = time.monotonic()

    @property
    def is_inherited(self) -> bool:
        """Whether it is the connection of the process that this one was forked from."""
        return self.process != os.getpid()


class Pool(ConnectionPool[PooledConnection]):
    """Tries again and again while somebody waits. psycopg gives up, and wakes nobody before another one asks."""

    _asked_at = float("-inf")
    # When a connection was last found to have ended while it was used.
    _lost_at = float("-inf")

    @classmethod
    def new(cls, parameters: dict[str, Any], size: int, configure: Callable[[Any], None]) -> "Pool":
        """A pool of so many connections at most, which is not open yet."""
        return cls(
            connection_class=PooledConnection,
            kwargs=parameters,
            configure=configure,
            check=_check,
            open=False,
            min_size=0,
            max_size=size,
            timeout=WAIT_SECONDS,
            max_idle=IDLE_SECONDS,
            reconnect_timeout=RECONNECT_SECONDS,
            num_workers=1,
        )

    def getconn(self, timeout: float | None = None) -> PooledConnection:
        self._asked_at = time.monotonic()
        connection = super().getconn(timeout)
        connection.taken_at = time.monotonic()
        _held.by_thread.take(connection)
        return connection

    def putconn(self, conn: PooledConnection) -> None:
        holder = conn.holder() if conn.holder is not None else None
        if holder is not None:
            holder.give_back(conn)
        now = time.monotonic()
        if conn.broken:
            self._lost_at = now
        # Since another one was found to have ended, this one need not have been used.
        conn.alive_at = now if conn.taken_at > self._lost_at else float("-inf")
        super().putconn(conn)

    def reconnect_failed(self) -> None:
        if time.monotonic() < self._asked_at + self.timeout:
            self.check()

    def counts_as_alive(self, connection: PooledConnection) -> bool:
        """Whether it may be handed out without asking the server."""
        # What was idle when another one was found to have ended may have ended as well.
        return connection.alive_at >= max(time.monotonic() - ALIVE_SECONDS, self._lost_at)


def _check(connection: PooledConnection) -> None:
    pool: Any = connection._pool
    if pool.counts_as_alive(connection):
        return
    try:
        Pool.check_connection(connection)
    except psycopg.Error:
        # After a restart of the server all of them have ended. psycopg would find them one after the other, and wait
        # for longer behind each.
        pool.check()
        raise


class _HeldByThread:
    """The connections that one thread has. Python deletes this with the thread, which then returns them."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self._connections: set[PooledConnection] = set()

    def take(self, connection: PooledConnection) -> None:
        connection.holder = ref(self)
        self._connections.add(connection)

    def give_back(self, connection: PooledConnection) -> None:
        """May be called from another thread, which has used it after this one."""
        self._connections.discard(connection)

    def __del__(self) -> None:
        if self._process != os.getpid():
            _inherited.extend(self._connections)
            return
        for connection in [*self._connections]:
            pool: Any = connection._pool
            try:
                pool.putconn(connection)
            except Exception:
                logger.exception("A thread that has ended could not return its connection.")


class _Held(threading.local):
    def __init__(self) -> None:
        self.by_thread = _HeldByThread()


_held = _Held()
_pools: dict[Key, Pool] = {}
_making = threading.Lock()
# What belongs to the process that this one was forked from: it is kept, so that nothing closes it here.
_inherited: list[object] = []


def pool_of(key: Key, make: Callable[[], Pool]) -> Pool:
    """The pool of this process with this key, which is made if there is none."""
    pool = _pools.get(key)
    if pool is None:
        with _making:
            pool = _pools.get(key) or _pools.setdefault(key, make())
    return pool


def close_pool(key: Key) -> None:
    pool = _pools.pop(key, None)
    if pool is not None:
        pool.close()


def leave(connection: PooledConnection) -> None:
    """Use an inherited connection no more: to return or to close it would end what its process does with it."""
    _inherited.append(connection)


def _after_fork() -> None:
    global _held, _making, _pools
    _inherited.extend([_pools, _held])
    _held, _making, _pools = _Held(), threading.Lock(), {}


@atexit.register
def _close_pools() -> None:
    """The threads of a pool do not outlive the interpreter quietly."""
    while _pools:
        _pools.popitem()[1].close()


os.register_at_fork(after_in_child=_after_fork)
