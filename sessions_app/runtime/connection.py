"""One database connection that a run shares with its tool threads.

Tools are called in other threads. A connection for each call would cost more than its commits, so they share the run's:
one thread at a time, for one transaction, never while a tool runs. Where connections come from a pool, the run has one
for the length of a transaction only: while it waits for its model or for a tool, others use it.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from django.db import (
    DEFAULT_DB_ALIAS,
    Error,
    InterfaceError,
    InternalError,
    OperationalError,
    connections,
    transaction,
)

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
        with self._held(), transaction.atomic():
            yield

    @contextmanager
    def whole_commit(self) -> Iterator[None]:
        """The run's connection for a commit that is made at once. Other threads wait until it is.

        :raises JournalUnavailable: as `transaction`.
        """
        with self._held():
            try:
                yield
            except Error:
                # It may be broken, and without a transaction Django does not look.
                if not self._connection.in_atomic_block:
                    self._connection.close()
                raise

    @contextmanager
    def _held(self) -> Iterator[None]:
        with self.lock if threading.get_ident() == self._thread else self._shared():
            try:
                yield
            # InternalError is what psycopg makes of an idle_in_transaction_session_timeout.
            except (OperationalError, InterfaceError, InternalError) as error:
                raise JournalUnavailable(str(error)) from error
            finally:
                self._return()

    def _return(self) -> None:
        """Give the connection back to its pool, if it is from one."""
        if getattr(self._connection, "pool", None) is not None and not self._connection.in_atomic_block:
            self._connection.close()

    def close_others(self) -> None:
        """Close the connections that a tool has opened in its own thread. Does nothing in the run's thread."""
        if threading.get_ident() != self._thread:
            forget_connections()

    @contextmanager
    def _shared(self) -> Iterator[None]:
        """Use the run's connection in this thread, which is not the run's. It has the lock."""
        with self.lock:
            own_connection = getattr(connections._connections, DEFAULT_DB_ALIAS, None)  # type: ignore[attr-defined]
            self._connection.inc_thread_sharing()
            connections[DEFAULT_DB_ALIAS] = self._connection
            try:
                yield
            finally:
                self._connection.dec_thread_sharing()
                if own_connection is not None:
                    connections[DEFAULT_DB_ALIAS] = own_connection
                else:
                    del connections[DEFAULT_DB_ALIAS]
