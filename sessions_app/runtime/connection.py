"""One database connection that a run shares with the threads of its tools.

What is recorded of a call is written where the call is made: in another thread, or with the run's connection put aside.
A connection for each call would cost more than its commits, so the run's is used: by one thread at a time, for one
transaction, never while a tool runs. Where connections come from a pool, the run has one for the length of a
transaction only: while it waits for its model or for a tool, others use it.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TypeVar

from django.db import DEFAULT_DB_ALIAS, Error, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from agentstate.durable.port import JournalUnavailable
from sessions_app.pooling import give_back
from sessions_app.unavailable import UNAVAILABLE, may_pass

T = TypeVar("T")


def forget_connections() -> None:
    """Close the connections of this thread, which is kept for other work.

    Nobody uses them again: what a tool has set for one, or has locked with it, ends with it. Django takes one that was
    closed in a transaction for being in it still, so they are made anew.
    """
    with ExitStack() as each:  # also where another one cannot be closed
        for opened in connections.all(initialized_only=True):
            each.callback(connections.__delitem__, opened.alias)
            # Only PostgreSQL has a pool, in which a connection would be used again.
            each.callback(getattr(opened, "close_for_good", opened.close))


class RunConnection:
    """The connection of the thread that creates it. Its methods may be called from any thread."""

    def __init__(self) -> None:
        self._connection = connections[DEFAULT_DB_ALIAS]
        self._thread = threading.get_ident()
        self.lock = threading.RLock()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """A transaction on the run's connection. Other threads wait until it ends.

        :raises JournalUnavailable: if the database is unavailable or locked for too long, or has ended the
            transaction, which PostgreSQL does where a process stands still in one; nothing of it is stored then.
        """
        with self.lock:
            own = self._take()
            try:
                with transaction.atomic():
                    yield
            except UNAVAILABLE as error:
                raise JournalUnavailable(str(error)) from error
            finally:
                self._give_back(own)

    def whole_commit(self, commit: Callable[[], T]) -> T:
        """What `commit` returns, which makes a commit at once on the run's connection. Other threads wait until it has.

        A function and no context: a generator takes as long as all the rest, and a class would keep the lock if a
        signal interrupted it between its methods.

        :raises JournalUnavailable: as `transaction`.
        """
        with self.lock:
            own = self._take()
            try:
                return commit()
            except Error as error:
                # It may be broken, and without a transaction Django does not look.
                if not self._connection.in_atomic_block:
                    self._connection.close()
                if isinstance(error, UNAVAILABLE):
                    raise JournalUnavailable(str(error)) from error
                raise
            finally:
                self._give_back(own)

    def passes(self, error: JournalUnavailable) -> bool:
        """Whether what has failed may succeed a moment later, with another connection."""
        with self.lock:
            is_server = self._connection.vendor == "postgresql" and not self._connection.in_atomic_block
        return is_server and error.__cause__ is not None and may_pass(error.__cause__)

    def close_others(self) -> None:
        """Close the connections that a tool has opened in its own thread. Does nothing in the run's thread."""
        if threading.get_ident() != self._thread:
            forget_connections()

    def aside(self, work: Callable[[], None]) -> None:
        """Do the work with connections of its own, which are closed afterwards. The run's is used by commits only."""
        opened = [(each.alias, each) for each in connections.all(initialized_only=True)]
        for alias, _ in opened:
            del connections[alias]
        try:
            work()
        finally:
            try:
                forget_connections()
            finally:
                for alias, connection in opened:
                    connections[alias] = connection

    def _take(self) -> BaseDatabaseWrapper | None:
        """Use the run's connection in this thread, which has the lock.

        :returns: The one that the thread has had, if any, which may be the run's.
        """
        own: BaseDatabaseWrapper | None = getattr(connections._connections, DEFAULT_DB_ALIAS, None)  # type: ignore[attr-defined]
        if own is not self._connection:
            self._connection.inc_thread_sharing()
            connections[DEFAULT_DB_ALIAS] = self._connection
        return own

    def _give_back(self, own: BaseDatabaseWrapper | None) -> None:
        """Let the pool have the connection, if it is from one.

        :param own: As `_take` has returned it.
        """
        try:
            give_back(self._connection)
        finally:
            if own is not self._connection:
                self._connection.dec_thread_sharing()
                if own is not None:
                    connections[DEFAULT_DB_ALIAS] = own
                else:
                    del connections[DEFAULT_DB_ALIAS]
