"""One database connection that a run shares with its tool threads.

Tools are called in other threads. A connection for each call would cost more than its commits, so they share the run's:
one thread at a time, for one transaction, never while a tool runs. Where connections come from a pool, the run has one
for the length of a transaction only: while it waits for its model or for a tool, others use it.
"""

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType

from django.db import (
    DEFAULT_DB_ALIAS,
    Error,
    InterfaceError,
    InternalError,
    OperationalError,
    connections,
    transaction,
)
from django.db.backends.base.base import BaseDatabaseWrapper

from agentstate.durable.port import JournalUnavailable


def forget_connections() -> None:
    """Close the connections of this thread, which is kept for other work.

    Django takes one that was closed in a transaction for being in it still, so they are made anew.
    """
    for opened in connections.all(initialized_only=True):
        opened.close()
        del connections[opened.alias]


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
        with _Held(self), transaction.atomic():
            yield

    def whole_commit(self) -> AbstractContextManager[None]:
        """The run's connection for a commit that is made at once. Other threads wait until it is.

        :raises JournalUnavailable: as `transaction`.
        """
        return _Held(self)

    def close_others(self) -> None:
        """Close the connections that a tool has opened in its own thread. Does nothing in the run's thread."""
        if threading.get_ident() != self._thread:
            forget_connections()

    def _take(self) -> BaseDatabaseWrapper | None:
        """Wait for the connection, and use it in this thread.

        :returns: The thread's own connection, if it is not the run's and has one.
        """
        self.lock.acquire()
        if threading.get_ident() == self._thread:
            return None
        own: BaseDatabaseWrapper | None = getattr(connections._connections, DEFAULT_DB_ALIAS, None)  # type: ignore[attr-defined]
        self._connection.inc_thread_sharing()
        connections[DEFAULT_DB_ALIAS] = self._connection
        return own

    def _give_back(self, own: BaseDatabaseWrapper | None, error: BaseException | None) -> None:
        """Let other threads use the connection, and its pool have it, if it is from one.

        :param own: As `_take` has returned it.
        """
        try:
            is_over = not self._connection.in_atomic_block
            # It may be broken, and without a transaction Django does not look.
            if is_over and (isinstance(error, Error) or getattr(self._connection, "pool", None) is not None):
                self._connection.close()
        finally:
            if threading.get_ident() != self._thread:
                self._connection.dec_thread_sharing()
                if own is not None:
                    connections[DEFAULT_DB_ALIAS] = own
                else:
                    del connections[DEFAULT_DB_ALIAS]
            self.lock.release()


class _Held:
    """The run's connection in this thread, as a context: a class, since a generator takes several times as long."""

    __slots__ = ("_own", "_run")

    def __init__(self, run: RunConnection) -> None:
        self._run = run

    def __enter__(self) -> None:
        self._own = self._run._take()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._run._give_back(self._own, error)
        finally:
            # InternalError is what psycopg makes of an idle_in_transaction_session_timeout.
            if isinstance(error, OperationalError | InterfaceError | InternalError):
                raise JournalUnavailable(str(error)) from error
