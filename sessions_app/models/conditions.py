"""Conditions as arguments of compiled queries: which of them have one SQL, but for the values in it.

Known is a `Q` that compares columns with values, looks for texts in them, or for them among what a `RawSQL` selects,
and one of the expressions of `_EXPRESSIONS`. What else it may be made of need not have the same SQL for other values:
see `UnknownConditionError`.
"""

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from enum import Enum
from functools import partial
from typing import Any
from uuid import UUID

from django.db.models import Case, F, Func, Q, Value, When
from django.db.models.constants import LOOKUP_SEP
from django.db.models.expressions import RawSQL

# A value of the column's type that it is compared with in one of these ways is one parameter of the SQL.
_COMPARES = ("", "exact", "gt", "gte", "lt", "lte")
# Of which all that the SQL depends on is their sources, their type, and what `_kind` has, as of those whose class says
# so by an attribute `is_its_sources`.
_EXPRESSIONS = (Func, Case, When)
# Of these no query has many, so each has SQL of its own.
_CONSTANTS = (Enum, timedelta)


# Makes a part of a condition of the next of other values.
_Make = Callable[[Iterator[Any]], Any]


class UnknownConditionError(Exception):
    """Django has to make the SQL of this condition each time."""


def shape_of(where: Q, values: list[Any]) -> object:
    """What has to be equal for two conditions to have one SQL; the values that may differ are added to `values`.

    :raises UnknownConditionError: for some conditions.
    """
    shape, _ = _walk(where, values)
    return shape


def with_values(where: Q, value_of: Callable[[Any], Any]) -> Q:
    """The condition with other values in place of its own, which are asked for in the order of `shape_of`."""
    values: list[Any] = []
    _, made_of = _walk(where, values)
    same: Q = made_of(map(value_of, values))
    return same


def _walk(where: Q, values: list[Any]) -> tuple[object, _Make]:
    """The shape of the condition, and what makes it of other values. It is made once for each shape only."""
    walked = [_walk_child(child, values) for child in where.children]

    def made_of(others: Iterator[Any]) -> Q:
        children = [make(others) for _, make in walked]
        return Q(*children, _connector=where.connector, _negated=where.negated)

    return (where.connector, where.negated, *[shape for shape, _ in walked]), made_of


def _walk_child(child: Any, values: list[Any]) -> tuple[object, _Make]:
    if isinstance(child, Q):
        return _walk(child, values)
    if not isinstance(child, tuple):
        return _walk_expression(child, values)
    name, compared = child
    _, _, lookup = name.partition(LOOKUP_SEP)
    match compared:
        case None | bool() | Enum():
            return (name, compared), lambda _: child
        case str() | int() | UUID() | datetime() if lookup in _COMPARES:
            values.append(compared)
            return (name, type(compared)), lambda others: (name, next(others))
        case str() if lookup == "icontains":
            values.append(compared)
            return (name,), lambda others: (name, next(others))
        case RawSQL() if lookup == "in" and all(
            isinstance(each, _CONSTANTS) or _is_value(each) for each in compared.params
        ):
            values += [each for each in compared.params if not isinstance(each, _CONSTANTS)]
            constants = tuple(
                [each if isinstance(each, _CONSTANTS) else type(each) for each in compared.params]
            )
            return (name, compared.sql, constants), lambda others: (name, _with_parameters(compared, others))
        case tuple() | list() if all(isinstance(constant, Enum) for constant in compared):
            return (name, tuple(compared)), lambda _: child
        case _:
            raise UnknownConditionError(child)


def _with_parameters(rows: RawSQL, others: Iterator[Any]) -> RawSQL:
    parameters = [each if isinstance(each, _CONSTANTS) else next(others) for each in rows.params]
    return RawSQL(rows.sql, parameters)  # noqa: S611 - as it was


def _is_value(value: Any) -> bool:
    return isinstance(value, str | int | UUID | datetime) and not isinstance(value, bool | Enum)


def _walk_expression(expression: Any, values: list[Any]) -> tuple[object, _Make]:
    if isinstance(expression, Q):
        return _walk(expression, values)
    kind = type(expression)
    if kind is F:
        return (F, expression.name), lambda _: expression
    if kind is Value and isinstance(expression.value, bool):
        return (Value, expression.value), lambda _: expression
    if kind is Value and _is_value(expression.value):
        values.append(expression.value)
        return (Value, type(expression.value), *_kind(expression)), partial(_with_value, expression)
    if kind not in _EXPRESSIONS and "is_its_sources" not in vars(kind):
        raise UnknownConditionError(expression)
    walked = [_walk_expression(source, values) for source in expression.get_source_expressions()]

    def made_of(others: Iterator[Any]) -> Any:
        same = expression.copy()
        same.set_source_expressions([make(others) for _, make in walked])
        return same

    return (kind, *_kind(expression), *[shape for shape, _ in walked]), made_of


def _with_value(expression: Value, others: Iterator[Any]) -> Value:
    same: Value = expression.copy()
    same.value = next(others)
    return same


def _kind(expression: Any) -> tuple[object, ...]:
    """What the SQL depends on besides the sources: the template and the like, and the type of what it comes to."""
    extra = getattr(expression, "extra", {})
    if not all(isinstance(value, str) for value in extra.values()):
        raise UnknownConditionError(expression)
    return tuple(extra.items()), type(vars(expression).get("output_field"))
