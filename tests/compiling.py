"""Compares what is kept of a compiled query with what Django makes of its query set."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import DEFAULT_DB_ALIAS
from django.db.backends.base.base import BaseDatabaseWrapper

from sessions_app.models.compiled import CompiledQuery


@contextmanager
def checked() -> Iterator[None]:
    """Compare at each call of any compiled query in this process."""
    kept_for = CompiledQuery._kept_for

    def compared(
        self: CompiledQuery[Any, Any],
        connection: BaseDatabaseWrapper,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        values: list[Any],
    ) -> Any:
        kept = kept_for(self, connection, args, kwargs, values)
        if kept is None:
            return None
        made = kept.sql, repr(kept.parameters_of(values))
        sql, parameters = self.query_set(*args, **kwargs).query.get_compiler(DEFAULT_DB_ALIAS).as_sql()
        # The values of JSON that psycopg is given are equal to none but themselves.
        expected = sql, repr(tuple(parameters))
        assert made == expected, f"{made} is not {expected}"
        return kept

    CompiledQuery._kept_for = compared  # type: ignore[method-assign]
    try:
        yield
    finally:
        CompiledQuery._kept_for = kept_for  # type: ignore[method-assign]
