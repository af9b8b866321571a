"""The pools of connections of this process, one for each database.

A connection belongs to whoever refers to it, until it is returned to its pool. One that was left behind, since nothing
refers to it any more, is never handed to anybody: Python closes it, and the pool makes another one. A tool may query
the database in threads of its own, which end without a word to the pool; what another thread goes on to use is not
taken from it. Often only Python's collector of garbage finds what was left behind: it is made to look while somebody
waits.

A connection that was used a moment ago is handed out without asking the server whether it is alive. A forked process
has pools of its own, and closes no connection that it has inherited.

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

import psycopg
from psycopg_pool import ConnectionPool

from agentstate.postgresql.pooled import InheritedConnection, PooledConnection, Stay

WAIT_SECONDS = 10.0
# While somebody waits, what was left behind is looked for as often as this.
LOOK_SECONDS = 0.02
# A collection that has found nothing is followed by a pause of so many times its own length.
COLLECTED_PAUSES = 9
# A connection that was returned no longer ago is handed out without asking the server.
ALIVE_SECONDS = 1.0
# As often as this, a connection is closed that nobody needed since.
IDLE_SECONDS = 60.0
# A server that is away is tried again after this time, as long as somebody may wait for a connection.
RECONNECT_SECONDS = 1.0

Key = tuple[Any, ...]


class Pool(ConnectionPool[PooledConnection]):
    """Tries again and again while somebody waits. psycopg gives up, and wakes nobody before another one asks."""

    _asked_at = float("-inf")
    # When a connection was last found to have ended while it was used.
    _lost_at = float("-inf")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # An entry for each connection that was left behind and that `_nconns` of psycopg still counts.
        self._left: deque[None] = deque()
        # Which thread took each connection that is out; none where it has ended, and the collector has looked since.
        self._takers: dict[Stay, threading.Thread | None] = {}
        # With the lock of psycopg: whether `_watch` is going to be called, and who waited the longest when it last was.
        self._watching = False
        self._longest: int | None = None
        # Only `_watch` starts it.
        self._collecting: threading.Thread | None = None
        self._collects_again_at = float("-inf")

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

    def open(self, wait: bool = False, timeout: float = 30.0) -> None:
        if not self._closed:
            return
        try:
            super().open(wait, timeout)
        except BaseException:
            # Half open it would let everybody wait in vain. It is made anew.
            for key in [key for key, pool in _pools.items() if pool is self]:
                close_pool(key)
            raise

    def getconn(self, timeout: float | None = None) -> PooledConnection:
        self._asked_at = time.monotonic()
        self.replace_left()
        try:
            connection = super().getconn(timeout)
        except BaseException:
            self._forget_refused()
            raise
        connection.taken_at = time.monotonic()
        if connection.stay is not None:
            self._takers[connection.stay] = threading.current_thread()
        return connection

    def _forget_refused(self) -> None:
        """psycopg keeps the error of whoever was refused until a connection is free, and by its traceback all that the
        thread referred to: other connections, too.
        """
        with self._lock:
            waiting = [client for client in self._waiting if client.error is None]
            self._waiting.clear()
            self._waiting.extend(waiting)

    def putconn(self, conn: PooledConnection) -> None:
        now = time.monotonic()
        self._look_at(conn)
        # Since another one was found to have ended, this one need not have been used.
        conn.alive_at = now if conn.taken_at > self._lost_at else float("-inf")
        super().putconn(conn)
        self.replace_left()

    def end(self, connection: PooledConnection) -> None:
        """Close the connection instead of taking it back."""
        self._look_at(connection)
        connection.close()
        self.lose(connection)

    def _look_at(self, connection: PooledConnection) -> None:
        if connection.broken:
            self._lost_at = time.monotonic()

    def lose(self, connection: PooledConnection) -> None:
        """Called where the connection was closed, or it was interrupted to return it. If the pool does not have it, it
        counts as left behind, once.
        """
        if not connection.is_lost and (connection.stay is None or not connection.stay.alive):
            connection.is_lost = True
            self._left.append(None)
        self.replace_left()

    def replace_left(self) -> None:
        """Make room for another connection in place of each that was left behind. Waits for the lock of the pool only,
        which nobody holds for long.
        """
        if self._left:
            with self._lock:
                while self._left:
                    self._left.pop()
                    self._nconns -= 1
                for stay in [stay for stay in [*self._takers] if not stay.alive]:
                    self._takers.pop(stay, None)
                if self._waiting:
                    self._maybe_grow_pool()

    def _add_to_pool(self, conn: PooledConnection) -> None:
        # Before anybody can have it: it is not lost either if who takes it is interrupted.
        conn.end_stay()
        conn.stay = Stay()
        conn.stay.begin(conn, self._left)
        super()._add_to_pool(conn)

    def _putconn(self, conn: PooledConnection, from_getconn: bool) -> None:
        conn.end_stay()
        if conn.stay is not None:
            self._takers.pop(conn.stay, None)
        super()._putconn(conn, from_getconn)

    def _close_connection(self, conn: PooledConnection) -> None:
        conn.end_stay()
        super()._close_connection(conn)

    @staticmethod
    def check_connection(conn: PooledConnection) -> None:
        try:
            ConnectionPool.check_connection(conn)
        except Exception:
            conn.end_stay()  # psycopg drops it, and makes another one
            raise

    def _maybe_grow_pool(self) -> None:
        """Called by psycopg, with its lock, for each thread that begins to wait."""
        super()._maybe_grow_pool()
        if self._waiting and not self._watching:
            self._watching = True
            self._sched.enter(LOOK_SECONDS, self._watch)

    def _watch(self) -> None:
        """Look for what was left behind, again and again while somebody waits. Called by psycopg's scheduler, which has
        to go on soon.

        The collector takes its time, so it is only asked where a thread has ended with a connection, or somebody has
        waited since the last look: where many wait for a moment each, probably nothing was left behind.
        """
        self.replace_left()
        with self._lock:
            # Who was interrupted while waiting stays among those who wait.
            goes_on = self._watching = bool(self._waiting) and self._somebody_may_wait()
            # No reference, which could keep a connection.
            before, self._longest = self._longest, id(self._waiting[0]) if goes_on else None
        if goes_on:
            ended = self._ended_takers()
            if ended or (before == self._longest and time.monotonic() >= self._collects_again_at):
                self._start_to_collect(ended)
            self._sched.enter(LOOK_SECONDS, self._watch)

    def _ended_takers(self) -> list[Stay]:
        """What was taken by threads that have ended, for which the collector has not looked yet."""
        takers = [*self._takers.items()]
        return [stay for stay, thread in takers if thread is not None and not thread.is_alive()]

    def _start_to_collect(self, ended: list[Stay]) -> None:
        if self._collecting is None or not self._collecting.is_alive():
            for stay in ended:
                self._takers[stay] = None
            # What a finalizer takes is left behind when this thread ends.
            self._collecting = threading.Thread(
                target=self._collect, name=f"{self.name}-collector", daemon=True
            )
            with suppress(RuntimeError):  # no more threads
                self._collecting.start()

    def _collect(self) -> None:
        began = time.monotonic()
        gc.collect()  # nothing, if another thread collects at this moment
        ended = time.monotonic()
        if not self._left:
            self._collects_again_at = ended + COLLECTED_PAUSES * (ended - began)
        self.replace_left()

    def _somebody_may_wait(self) -> bool:
        return time.monotonic() < self._asked_at + self.timeout

    def reconnect_failed(self) -> None:
        if self._somebody_may_wait():
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


def give_back(stay: Stay, *, for_good: bool = False) -> None:
    """Return the connection with this stay to its pool. Of several threads that call this one does it, and the others
    do nothing; nothing is done either where the connection was left behind.

    :param for_good: It is closed instead, so that what still refers to it cannot use it any more.
    """
    held = stay.peek()
    if held is None:
        return
    connection = held[0]
    pool = connection._pool
    try:
        if stay.detach() is None:
            return
        if for_good:
            pool.end(connection)
        else:
            pool.putconn(connection)
    except BaseException:
        pool.lose(connection)
        raise


def leave(connection: PooledConnection) -> None:
    """Use an inherited connection no more: to return or to close it would end what its process does with it."""
    _inherited.append(connection)


def _after_fork() -> None:
    global _making, _pools
    for pool in _pools.values():
        for stay in [*pool._takers]:
            held = stay.peek()
            if held is not None:
                held[0].__class__ = InheritedConnection
    _inherited.append(_pools)
    _making, _pools = threading.Lock(), {}


@atexit.register
def _close_pools() -> None:
    """The threads of a pool do not outlive the interpreter quietly."""
    while _pools:
        _pools.popitem()[1].close()


os.register_at_fork(after_in_child=_after_fork)
