"""Writes that are sent to PostgreSQL together with the COMMIT of their transaction, in one round trip.

A statement costs a round trip, and the system call that wakes the server costs as much as the statement itself. Nobody
reads anything from the last writes of most transactions, so they wait here until the COMMIT. No statement overtakes
them, but one of a cursor that was open before: whoever takes a cursor has them executed first.

An error of such a write, also that of a value which cannot be sent, is raised where it is executed: at the latest by
the commit, which then rolls back.

They are sent as one text. Prepared statements in psycopg's pipeline mode would spare the server their parsing, but it
does not end a transaction that stays idle in the midst of a pipeline, as it would if this process were stopped there.
"""

from collections.abc import Sequence
from typing import Any

import psycopg
from django.db.backends.postgresql import base
from django.db.backends.utils import CursorWrapper, debug_transaction

from agentstate.postgresql.prepared import PreparedCursor


class LaterWrites(base.DatabaseWrapper):
    """The part of a connection that keeps such writes. Of one thread, like the connection."""

    _later: list[tuple[str, Sequence[Any]]]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._later = []

    def write_later(self, statement: str, values: Sequence[Any]) -> None:
        """Execute the statement in the transaction that is under way, before its next one or together with its COMMIT.

        Outside of a transaction it is executed at once.
        """
        self.validate_no_broken_transaction()
        self.ensure_connection()
        self._later.append((statement, values))
        if not self.in_atomic_block:
            self.execute_later_writes()

    def execute_later_writes(self) -> None:
        """Execute what waits, in the order in which it was written.

        After an error none of it waits any more, and the transaction that is under way can only be rolled back: who
        gets the error may expect one of a statement of its own, and go on.
        """
        if not self._later:
            return
        writes, self._later = self._later, []
        try:
            self.ensure_connection()
            for statement, values in writes:
                with self.new_prepared_cursor() as cursor:
                    cursor.execute(statement, values)
        except BaseException as error:
            if self.in_atomic_block:
                self.needs_rollback = True
                self.rollback_exc = error
            raise

    def new_prepared_cursor(self) -> CursorWrapper:
        """A cursor for prepared statements, before which what waits is not executed."""
        with self.wrap_database_errors:
            cursor: CursorWrapper = self._prepare_cursor(PreparedCursor(self.connection))  # type: ignore[attr-defined]
        return cursor

    def _cursor(self, name: str | None = None) -> Any:
        self.execute_later_writes()
        return super()._cursor(name)  # type: ignore[misc]

    def _commit(self) -> None:
        if not self._later:
            super()._commit()  # type: ignore[misc]
            return
        with self.wrap_database_errors:
            text = self._text_to_commit()
            with debug_transaction(self, text):
                self.connection.execute(text.encode(), prepare=False)

    def _text_to_commit(self) -> str:
        """What waits, with its values, and the COMMIT. All of it can be encoded."""
        writes, self._later = self._later, []
        cursor = psycopg.ClientCursor(self.connection)
        try:
            text = "; ".join([*[cursor.mogrify(statement, values) for statement, values in writes], "COMMIT"])
            text.encode()
        except psycopg.Error:
            raise
        except BaseException:
            # A value that cannot be sent, such as half of a surrogate pair. After a commit that fails otherwise than by
            # an error of the database, Django would leave the transaction open, and its hooks for the next one.
            self.rollback()
            raise
        return text

    def _rollback(self) -> None:
        self._later.clear()
        super()._rollback()  # type: ignore[misc]

    def _savepoint_rollback(self, sid: str) -> None:
        # What was written before the savepoint was executed by the statement that made it.
        self._later.clear()
        super()._savepoint_rollback(sid)  # type: ignore[misc]

    def _close(self) -> None:
        self._later.clear()
        super()._close()  # type: ignore[misc]
