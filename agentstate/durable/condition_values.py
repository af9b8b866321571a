"""Which values a breakpoint's condition can compare an argument with, as far as the tool's JSON schema says.

Pure Python, like `agentstate.durable.breakpoints`.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from agentstate.durable.breakpoints import Breakpoint, Comparison, Condition, same_value, why_no_such_argument
from agentstate.durable.json_types import TYPE_WORDS

Json = Any


def why_never_met(breakpoint: Breakpoint, schema: Mapping[str, Json]) -> str:
    """Why no call that fits the tool's schema meets the condition; "" if one can, as far as the schema tells.

    The value is not named: it may have to be hidden.
    """
    condition = breakpoint.condition
    if why := why_no_such_argument(breakpoint, schema):
        return why
    if condition is None or condition.comparison is Comparison.DIFFERENT or suits(condition, schema):
        return ""
    of_argument = _schema_of(condition.argument, schema)
    about = f"The argument {condition.argument!r} of the tool {breakpoint.tool} is"
    if _is_of_type(condition.value, _types(of_argument)) and condition.comparison is Comparison.EQUAL:
        return f"{about} one of {json.dumps(of_argument['enum'], ensure_ascii=False)}, and no other value."
    types = " or ".join(TYPE_WORDS.get(name, name) for name in sorted(_types(of_argument) or ()))
    value = TYPE_WORDS[_type_of(condition.value)]
    return f"{about} {types}: no call meets a condition by which it {condition.comparison.text} {value}."


def suits(condition: Condition, schema: Mapping[str, Json]) -> bool:
    """Whether the value is of a type with which the argument can be compared so, as far as the schema tells."""
    of_argument, value = _schema_of(condition.argument, schema), condition.value
    types = _types(of_argument)
    if types is None:
        return True
    match condition.comparison:
        case Comparison.EQUAL | Comparison.DIFFERENT:
            allowed = of_argument.get("enum")
            is_allowed = not isinstance(allowed, list) or any(same_value(value, item) for item in allowed)
            return is_allowed and _is_of_type(value, types)
        case Comparison.CONTAINS:
            in_list = "array" in types and _is_of_type(value, _types(of_argument.get("items")))
            return in_list or (isinstance(value, str) and not types.isdisjoint({"string", "object"}))
    if isinstance(value, str):
        return "string" in types
    return _type_of(value) in ("integer", "number") and not types.isdisjoint({"integer", "number"})


def _schema_of(argument: str, schema: Mapping[str, Json]) -> Mapping[str, Json]:
    properties = schema.get("properties")
    found = properties.get(argument) if isinstance(properties, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _types(schema: Json) -> frozenset[str] | None:
    """The types of JSON that a schema allows; None where it does not tell."""
    if not isinstance(schema, Mapping):
        return None
    declared = schema.get("type")
    if isinstance(declared, str):
        return frozenset({declared})
    if isinstance(declared, list):
        return frozenset(map(str, declared))
    if isinstance(schema.get("enum"), list):
        return frozenset(map(_type_of, schema["enum"]))
    for alternatives in (schema.get("anyOf"), schema.get("oneOf")):
        if isinstance(alternatives, list):
            return _together(map(_types, alternatives))
    return None


def _together(alternatives: Iterable[frozenset[str] | None]) -> frozenset[str] | None:
    known: frozenset[str] = frozenset()
    for types in alternatives:
        if types is None:
            return None
        known |= types
    return known


def _is_of_type(value: Json, types: frozenset[str] | None) -> bool:
    name = _type_of(value)
    return types is None or name in types or (name == "integer" and "number" in types)


def _type_of(value: Json) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        return "integer"
    if isinstance(value, float):
        return "number"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list | tuple) else "object"
