"""One database connection that a run shares with its tool threads.

Haystack runs each tool call in a thread of its own. A connection for each of them would cost more than the call's
commits, so they share the run's: one thread at a time, for one transaction, never while a tool runs. Where connections
come from a pool, the run has one for the length of a transaction only: while it waits for its model or for a tool,
others use it.
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


class RunConnection:
    """The connection of the thread that creates it. Its methods may be called from any thread.

    takes_one_statement: whether the database takes a whole commit as one statement (`statements.fence_and_write`).
    """

    def __init__(self) -> None:
        self._connection = connections[DEFAULT_DB_ALIAS]
        # Not asked for in a tool's thread, which would make a connection of its own to answer.
        self.takes_one_statement = self._connection.vendor == "postgresql"
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
    def statement(self) -> Iterator[None]:
        """The run's connection for one statement that is a commit by itself. Other threads wait until it is executed.

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
            connections.close_all()

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
