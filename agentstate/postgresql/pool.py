"""The pools of connections of this process, one for each database.

A connection belongs to whoever took it from its pool, until it is returned, or nobody can use it any more: a tool may
query the database in threads of its own, which end without a word to the pool. What another thread goes on to use is
not taken from it: Python's collector of garbage says what nobody can use, and is asked when somebody has to wait. A
connection that was used a moment ago is handed out without asking the server whether it is alive. A forked process has
pools of its own, and closes no connection that it has inherited.

A thread that finds no connection free waits for one, and gets an error after WAIT_SECONDS, also where the server is not
to be reached. A server that is reached, and then does not answer, is waited for, as by a thread that has a connection.
"""

import atexit
import gc
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from weakref import finalize, ref

import psycopg
from psycopg_pool import ConnectionPool

WAIT_SECONDS = 10.0
# For so long at most a thread that ends is waited for.
END_SECONDS = 0.1
# A connection that was returned no longer ago is handed out without asking the server.
ALIVE_SECONDS = 1.0
# As often as this, a connection is closed that nobody needed since.
IDLE_SECONDS = 60.0
# A server that is away is tried again after this time, as long as somebody may wait for a connection.
RECONNECT_SECONDS = 1.0

Key = tuple[Any, ...]


class PooledConnection(psycopg.Connection[Any]):
    """A connection that knows since when it is known to be alive, and by whom it is used.

    user: is called once nobody can use it any more. ``taker``: the thread that took it from its pool.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.process = os.getpid()
        self.user: finalize[..., Any] | None = None
        self.taker: ref[_Taker] | None = None
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

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._left: deque[PooledConnection] = deque()
        # Those that have ended with a connection since it was last looked for what they have left.
        self._ended: list[threading.Thread] = []

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
        self._take_back()
        if not self._pool:
            self._look_for_what_is_left()
        connection = super().getconn(timeout)
        connection.taken_at = time.monotonic()
        _of_thread.takes(connection)
        return connection

    def is_used_by(self, user: object, connection: PooledConnection) -> None:
        """Nobody but this object uses the connection until it is returned: without the object, it is left behind."""
        # The collector does not return it: it may have interrupted this pool in the middle of something.
        connection.user = finalize(user, self._left.append, connection)
        connection.user.atexit = False

    def putconn(self, conn: PooledConnection) -> None:
        if conn.user is not None:
            conn.user.detach()
            conn.user = None
        if conn.taker is not None and (taker := conn.taker()) is not None:
            taker.connections.discard(conn)
        now = time.monotonic()
        if conn.broken:
            self._lost_at = now
        # Since another one was found to have ended, this one need not have been used.
        conn.alive_at = now if conn.taken_at > self._lost_at else float("-inf")
        super().putconn(conn)
        self._take_back()

    def thread_ends(self, thread: threading.Thread) -> None:
        """The thread, in which this is called, ends with a connection of this pool that it has not returned."""
        self._ended.append(thread)
        if self._waiting:
            # Here the connection can still be used.
            with suppress(RuntimeError):  # no more threads
                threading.Thread(target=self._look_for_what_is_left, daemon=True).start()

    def _look_for_what_is_left(self) -> None:
        """Return what threads have left that have ended; where none has, to look would only take time."""
        ended, self._ended = self._ended, []
        if ended:
            for thread in ended:
                with suppress(RuntimeError):  # of this thread
                    thread.join(END_SECONDS)
            gc.collect()
            self._take_back()

    def _take_back(self) -> None:
        """Return what was left behind; an open transaction of it is rolled back."""
        while self._left:
            try:
                connection = self._left.popleft()
            except IndexError:  # another thread was faster
                return
            self.putconn(connection)

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


class _Taker:
    """A thread, with the connections that it has taken and not returned. Python deletes this with the thread."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self._thread = threading.current_thread()
        self.connections: set[PooledConnection] = set()

    def __del__(self) -> None:
        # Other threads do not end because of a fork.
        if self._process == os.getpid() and not isinstance(self._thread, threading._DummyThread):
            for pool in {connection._pool for connection in self.connections}:
                if isinstance(pool, Pool):
                    pool.thread_ends(self._thread)


class _OfThread(threading.local):
    def __init__(self) -> None:
        self._taker = _Taker()

    def takes(self, connection: PooledConnection) -> None:
        connection.taker = ref(self._taker)
        self._taker.connections.add(connection)


_of_thread = _OfThread()
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
    global _making, _of_thread, _pools
    _inherited.extend([_pools, _of_thread])
    _making, _of_thread, _pools = threading.Lock(), _OfThread(), {}


@atexit.register
def _close_pools() -> None:
    """The threads of a pool do not outlive the interpreter quietly."""
    while _pools:
        _pools.popitem()[1].close()


os.register_at_fork(after_in_child=_after_fork)
