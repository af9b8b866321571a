"""The columns of our models as SQL statements name them, and the conversion of values as the ORM would do it."""

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from django.db import connection, models
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Field, Model

from sessions_app.models.totals import Totals, TotalsField, pack

Converter = Callable[[Any, BaseDatabaseWrapper], Any]
# What is stored was encoded before (`agentstate.durable.state.encoding`), so it does not contain itself.
_json = json.JSONEncoder(check_circular=False).encode
# The characters of "+00:00".
OFFSET = 6


def converters_of(model: type[Model], names: Sequence[str]) -> tuple[Converter | None, ...]:
    return tuple(_converter(_field(model, name), connection.vendor) for name in names)


def _converter(field: "Field[Any, Any]", vendor: str) -> Converter | None:
    """The function that converts a value as the ORM would; None where none is needed."""
    if isinstance(field, models.ForeignKey):
        return _converter(field.target_field, vendor)
    if isinstance(field, models.CharField | models.TextField | models.IntegerField | models.BooleanField):
        return None
    if isinstance(field, TotalsField):
        return _packed_totals
    if isinstance(field, models.JSONField):
        return _sqlite_json if vendor == "sqlite" else _postgresql_json()
    if isinstance(field, models.DateTimeField) and vendor == "sqlite":
        return _sqlite_datetime
    if isinstance(field, models.DateTimeField | models.UUIDField) and vendor == "postgresql":
        return None
    return field.get_db_prep_save


def _packed_totals(value: Totals, to: BaseDatabaseWrapper) -> str:
    return pack(value)


def _postgresql_json() -> Converter:
    from psycopg.types.json import Jsonb

    return lambda value, to: None if value is None else Jsonb(value, dumps=_json)


def _sqlite_json(value: Any, to: BaseDatabaseWrapper) -> str | None:
    return None if value is None else _json(value)


def _sqlite_datetime(value: datetime | None, to: BaseDatabaseWrapper) -> str | None:
    if value is None:
        return None
    in_utc = value if value.tzinfo is UTC else value.astimezone(UTC)
    return in_utc.isoformat(" ")[:-OFFSET]


def converted(
    converters: Sequence[Converter | None], values: Sequence[Any], database: BaseDatabaseWrapper
) -> list[Any]:
    return [
        value if convert is None else convert(value, database)
        for convert, value in zip(converters, values, strict=True)
    ]


def _field(model: type[Model], name: str) -> "Field[Any, Any]":
    return next(field for field in model._meta.concrete_fields if name in (field.name, field.attname))


def column(model: type[Model], name: str) -> str:
    return quoted(str(_field(model, name).column))


def quoted(name: str) -> str:
    return connection.ops.quote_name(name)


def typed_place(model: type[Model], name: str) -> str:
    """The place of a value in a row of VALUES that is no part of an INSERT: such a value has no type of its own."""
    # Without its length: a cast would cut off what is longer, which an INSERT refuses.
    kind = str(_field(model, name).db_type(connection)).partition("(")[0]
    return f"%s::{kind}"
