"""Conditions as arguments of compiled queries: which of them have one SQL, but for the values in it.

Known is a `Q` that compares columns with values, or looks for them among what a `RawSQL` selects, and one of the
expressions of `_EXPRESSIONS`. What else it may be made of need not have the same SQL for other values: see
`UnknownConditionError`.
"""

from collections.abc import Callable
from datetime import datetime
from enum import Enum
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


class UnknownConditionError(Exception):
    """Django has to make the SQL of this condition each time."""


def shape_of(where: Q, values: list[Any]) -> object:
    """What has to be equal for two conditions to have one SQL; the values that may differ are added to `values`.

    :raises UnknownConditionError: for some conditions.
    """
    shape, _ = _walk(where, values.append)
    return shape


def with_values(where: Q, value_of: Callable[[Any], Any]) -> Q:
    """The condition with other values in place of its own, which are asked for in the order of `shape_of`."""
    _, same = _walk(where, value_of)
    return same


def _walk(where: Q, value_of: Callable[[Any], Any]) -> tuple[object, Q]:
    walked = [_walk_child(child, value_of) for child in where.children]
    same = Q(*[child for _, child in walked], _connector=where.connector, _negated=where.negated)
    return (where.connector, where.negated, *[shape for shape, _ in walked]), same


def _walk_child(child: Any, value_of: Callable[[Any], Any]) -> tuple[object, Any]:
    if isinstance(child, Q):
        return _walk(child, value_of)
    if not isinstance(child, tuple):
        return _walk_expression(child, value_of)
    name, compared = child
    _, _, lookup = name.partition(LOOKUP_SEP)
    match compared:
        case None | bool() | Enum():
            return (name, compared), child
        case str() | int() | UUID() | datetime() if lookup in _COMPARES:
            return (name, type(compared)), (name, value_of(compared))
        case RawSQL() if lookup == "in" and all(
            isinstance(each, Enum) or _is_value(each) for each in compared.params
        ):
            constants = tuple([each if isinstance(each, Enum) else type(each) for each in compared.params])
            values = [each if isinstance(each, Enum) else value_of(each) for each in compared.params]
            rows = RawSQL(compared.sql, values)  # noqa: S611 - as it was
            return (name, compared.sql, constants), (name, rows)
        case tuple() if all(isinstance(constant, Enum) for constant in compared):
            return (name, compared), child
        case _:
            raise UnknownConditionError(child)


def _is_value(value: Any) -> bool:
    return isinstance(value, str | int | UUID | datetime) and not isinstance(value, bool | Enum)


def _walk_expression(expression: Any, value_of: Callable[[Any], Any]) -> tuple[object, Any]:
    if isinstance(expression, Q):
        return _walk(expression, value_of)
    kind = type(expression)
    if kind is F:
        return (F, expression.name), expression
    if kind is Value and isinstance(expression.value, bool):
        return (Value, expression.value), expression
    if kind is Value and _is_value(expression.value):
        same = expression.copy()
        same.value = value_of(expression.value)
        return (Value, type(expression.value), *_kind(expression)), same
    if kind not in _EXPRESSIONS and "is_its_sources" not in vars(kind):
        raise UnknownConditionError(expression)
    walked = [_walk_expression(source, value_of) for source in expression.get_source_expressions()]
    same = expression.copy()
    same.set_source_expressions([source for _, source in walked])
    return (kind, *_kind(expression), *[shape for shape, _ in walked]), same


def _kind(expression: Any) -> tuple[object, ...]:
    """What the SQL depends on besides the sources: the template and the like, and the type of what it comes to."""
    extra = getattr(expression, "extra", {})
    if not all(isinstance(value, str) for value in extra.values()):
        raise UnknownConditionError(expression)
    return tuple(extra.items()), type(vars(expression).get("output_field"))
