"""INSERTs and UPDATEs of our models, whose SQL is made once in a process.

Columns are named as in ``branch_id``. The values of the models are converted by what is returned with the SQL, which is
that of the present connection: ``vendor`` is its own.
"""

from collections.abc import Sequence
from functools import lru_cache

from django.db.models import Model

from sessions_app.models.columns import Converter, column, converters_of, quoted

Statement = tuple[str, tuple[Converter | None, ...]]
Insert = tuple[type[Model], tuple[str, ...], int]  # the model, the columns and the number of rows
# The rows of sessions are updated with some tens of different sets of columns.
MOST_UPDATES = 500


@lru_cache(maxsize=256)
def insert_sql(vendor: str, inserts: tuple[Insert, ...]) -> Statement:
    """One statement for all of them: PostgreSQL executes those in front of the last as its common table expressions."""
    statements: list[str] = []
    converters: list[Converter | None] = []
    for model, names, rows in inserts:
        columns = ", ".join(column(model, name) for name in names)
        places = ", ".join([f"({', '.join(['%s'] * len(names))})"] * rows)
        statements.append(f"INSERT INTO {quoted(model._meta.db_table)} ({columns}) VALUES {places}")  # noqa: S608 - our own columns
        converters += converters_of(model, names) * rows
    first = ", ".join(f"rows{number} AS ({sql})" for number, sql in enumerate(statements[:-1]))
    return f"WITH {first} {statements[-1]}" if first else statements[-1], tuple(converters)


@lru_cache(maxsize=MOST_UPDATES)
def update_sql(
    vendor: str, model: type[Model], names: tuple[str, ...], where: tuple[str, ...], raised: str
) -> Statement:
    sets = [f"{column(model, name)} = %s" for name in names]
    if raised:
        sets.append(f"{column(model, raised)} = {column(model, raised)} + 1")
    sql = f"UPDATE {quoted(model._meta.db_table)} SET {', '.join(sets)} WHERE {equal(model, where)}"  # noqa: S608 - our own columns
    return sql, converters_of(model, (*names, *where))


def equal(model: type[Model], names: Sequence[str]) -> str:
    return " AND ".join(f"{column(model, name)} = %s" for name in names)
