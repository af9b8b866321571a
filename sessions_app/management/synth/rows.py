"""Many rows at once: COPY on PostgreSQL, executemany on SQLite.

What a row does not name gets the default of its field. Keys that other rows refer to are reserved in blocks, so that
nobody else gets them.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import cache
from typing import Any
from uuid import UUID

from django.db import connection, models, transaction
from django.db.models import Model

from sessions_app.models.totals import TotalsField, pack

Values = dict[str, Any]
Encoder = Callable[[Any], Any]
ROWS_AT_ONCE = 20_000
KEYS_AT_ONCE = 10_000
_ESCAPED = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})
_json = json.JSONEncoder(ensure_ascii=False).encode


class Rows:
    """Collects rows, and inserts those of all tables in one transaction once there are many.

    Call `flush` at the end. Rows may refer to rows that are added later in the same batch: foreign keys are checked
    when the transaction ends.
    """

    def __init__(self) -> None:
        self.written = 0
        self._rows: dict[type[Model], list[list[Any]]] = defaultdict(list)
        self._waiting = 0

    def add(self, model: type[Model], values: Values) -> None:
        """A foreign key is named by its column, as in ``branch_id``."""
        defaults = _defaults(model)
        row = defaults | values
        if len(row) != len(defaults) + ("id" in values and "id" not in defaults):
            raise TypeError(f"{model.__name__} has not all of {', '.join(values)}")
        self._rows[model].append([encode(row[name]) for name, encode in _encoders(model)])
        self._waiting += 1

    def flush_if_many(self) -> None:
        """Call it between two sessions: a session's rows are committed together."""
        if self._waiting >= ROWS_AT_ONCE:
            self.flush()

    def flush(self) -> None:
        with transaction.atomic():
            if connection.vendor == "postgresql":
                # The triggers of the tags plan their queries once, which is while the tables are still small.
                with connection.cursor() as cursor:
                    cursor.execute("SET LOCAL enable_seqscan = off")
            for model, rows in self._rows.items():
                _insert(model, rows)
        self.written += self._waiting
        self._waiting = 0
        self._rows.clear()


def keys_of(model: type[Model]) -> Iterator[int]:
    """New keys for rows of the model, without end."""
    while True:
        yield from _reserved(model._meta.db_table)


def _reserved(table: str) -> list[int]:
    with transaction.atomic(), connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute(
                "SELECT nextval(pg_get_serial_sequence(%s, 'id')) FROM generate_series(1, %s)",
                [table, KEYS_AT_ONCE],
            )
            return [row[0] for row in cursor.fetchall()]
        cursor.execute("UPDATE sqlite_sequence SET seq = seq + %s WHERE name = %s", [KEYS_AT_ONCE, table])
        if cursor.rowcount == 0:
            cursor.execute("INSERT INTO sqlite_sequence (name, seq) VALUES (%s, %s)", [table, KEYS_AT_ONCE])
        cursor.execute("SELECT seq FROM sqlite_sequence WHERE name = %s", [table])
        last = cursor.fetchone()[0]
        return list(range(last - KEYS_AT_ONCE + 1, last + 1))


def _insert(model: type[Model], rows: list[list[Any]]) -> None:
    table = connection.ops.quote_name(model._meta.db_table)
    columns = ", ".join(connection.ops.quote_name(_column(model, name)) for name, _ in _encoders(model))
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            with cursor.copy(f"COPY {table} ({columns}) FROM STDIN") as copy:
                copy.write("".join("\t".join(row) + "\n" for row in rows))
        else:
            places = ", ".join(["%s"] * len(rows[0]))
            cursor.executemany(f"INSERT INTO {table} ({columns}) VALUES ({places})", rows)  # noqa: S608 - our own columns


@cache
def _fields(model: type[Model]) -> "tuple[models.Field[Any, Any], ...]":
    """All but the keys that the database gives, and what it generates."""
    return tuple(
        field
        for field in model._meta.concrete_fields
        if not field.generated
        and (not isinstance(field, models.AutoField) or model._meta.model_name in WITH_KEYS)
    )


WITH_KEYS = frozenset({"branch", "toolcall"})
"""The models whose rows are given a key of `keys_of`, since other rows refer to them."""


@cache
def _defaults(model: type[Model]) -> Values:
    return {field.attname: field.get_default() for field in _fields(model)}


def _encoders(model: type[Model]) -> tuple[tuple[str, Encoder], ...]:
    return _encoders_for(model, connection.vendor)


@cache
def _encoders_for(model: type[Model], vendor: str) -> tuple[tuple[str, Encoder], ...]:
    encode = _for_copy if vendor == "postgresql" else _for_sqlite
    return tuple((field.attname, encode(field)) for field in _fields(model))


def _for_copy(field: "models.Field[Any, Any]") -> Encoder:
    to_text: Encoder = str
    if isinstance(field, TotalsField):
        to_text = lambda value: pack(value).translate(_ESCAPED)  # noqa: E731
    elif isinstance(field, models.JSONField):
        to_text = lambda value: _json(value).translate(_ESCAPED)  # noqa: E731
    elif isinstance(field, models.CharField | models.TextField):
        to_text = lambda value: value.translate(_ESCAPED)  # noqa: E731
    elif isinstance(field, models.DateTimeField):
        to_text = datetime.isoformat
    return lambda value: "\\N" if value is None else to_text(value)


def _for_sqlite(field: "models.Field[Any, Any]") -> Encoder:
    if isinstance(field, TotalsField):
        return pack
    if isinstance(field, models.JSONField):
        return lambda value: None if value is None else _json(value)
    if isinstance(field, models.DateTimeField):
        return lambda value: None if value is None else str(value.astimezone(UTC).replace(tzinfo=None))
    return lambda value: value.hex if isinstance(value, UUID) else value


def _column(model: type[Model], name: str) -> str:
    return next(str(field.column) for field in _fields(model) if field.attname == name)
