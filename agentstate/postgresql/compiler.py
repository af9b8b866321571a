"""Django's compilers, whose statements for one row are prepared: an INSERT of it, and an UPDATE by its primary key.

The plan of such a statement is the same for all values. Others are sent with their values in the text: which plan is
right for them may depend on the values.
"""

from typing import Any

from django.db.backends.postgresql import compiler
from django.db.backends.postgresql.compiler import SQLAggregateCompiler, SQLCompiler, SQLDeleteCompiler
from django.db.models.lookups import Exact
from django.db.models.sql.compiler import SQLUpdateCompiler as BaseUpdateCompiler

__all__ = [
    "SQLAggregateCompiler",
    "SQLCompiler",
    "SQLDeleteCompiler",
    "SQLInsertCompiler",
    "SQLUpdateCompiler",
]


class SQLInsertCompiler(compiler.SQLInsertCompiler):
    def execute_sql(self, returning_fields: Any = None) -> Any:  # type: ignore[override]
        if len(self.query.objs) == 1:
            self.connection = self.connection.prepared()  # type: ignore[attr-defined]
        return super().execute_sql(returning_fields)


class SQLUpdateCompiler(BaseUpdateCompiler):
    def execute_sql(self, result_type: Any) -> Any:  # type: ignore[override]
        if _is_of_one_row(self.query.where.children):
            self.connection = self.connection.prepared()  # type: ignore[attr-defined]
        return super().execute_sql(result_type)


def _is_of_one_row(conditions: list[Any]) -> bool:
    """Whether the only condition is that the primary key has a value."""
    return (
        len(conditions) == 1
        and isinstance(conditions[0], Exact)
        and getattr(conditions[0].lhs, "target", None) is not None
        and conditions[0].lhs.target.primary_key
        and conditions[0].rhs_is_direct_value()
    )
