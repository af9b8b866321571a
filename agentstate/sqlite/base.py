"""Django's SQLite with the converted text of statements remembered.

Django writes placeholders as ``%s`` and SQLite as ``?``. Django searches the text of a statement for them each time it
is executed, which for the few statements of a step takes longer than SQLite needs for some of them.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import Any

from django.db.backends.sqlite3 import base

# More than the runs and the pages of one process execute often. Most texts have some hundred bytes.
MOST_STATEMENTS = 500


class Cursor(base.SQLiteCursorWrapper):
    def execute(self, query: str, params: Any = None) -> Any:
        if type(params) in (list, tuple):
            return sqlite3.Cursor.execute(self, _with_question_marks(query), params)
        return super().execute(query, params)

    def convert_query(self, query: str, *, param_names: list[str] | None = None) -> str:
        if param_names is not None:
            return str(super().convert_query(query, param_names=param_names))
        return _with_question_marks(query)


class DatabaseWrapper(base.DatabaseWrapper):
    def create_cursor(self, name: Any = None) -> Cursor:
        cursor: Cursor = self.connection.cursor(factory=Cursor)
        return cursor

    @contextmanager
    def plain_cursor(self) -> Iterator[Any]:
        """The driver's own cursor, for several statements at once: Django does as much around each statement as some
        of them take. Its errors are Django's outside of the context. Where statements are logged or have wrappers it is
        Django's cursor.
        """
        if self.execute_wrappers or self.queries_logged:
            with self.cursor() as watched:
                yield watched
            return
        self.ensure_connection()
        self.validate_thread_sharing()
        cursor = self.create_cursor(None)
        try:
            with self.wrap_database_errors:
                yield cursor
        finally:
            # As Django's does it: what has failed before is told, and not that the connection is closed.
            with suppress(sqlite3.Error):
                cursor.close()

    def write_later(self, statement: str, values: Sequence[Any]) -> None:
        """Execute the statement at once: it takes no round trip that it could share (see `agentstate.postgresql`)."""
        with self.cursor() as cursor:
            cursor.execute(statement, values)


@lru_cache(maxsize=MOST_STATEMENTS)
def _with_question_marks(query: str) -> str:
    """As Django does it: ``%%`` stands for a percent sign."""
    return str(base.FORMAT_QMARK_REGEX.sub("?", query)).replace("%%", "%")
