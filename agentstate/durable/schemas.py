"""Whether values are valid for a tool's JSON schema.

What is said of a value names the place and the rule, never the value, which the desk may hide from the reader.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import jsonschema
from jsonschema.exceptions import best_match
from referencing.exceptions import Unresolvable

from agentstate.durable.breakpoints import same_value
from agentstate.durable.json_types import TYPE_WORDS
from agentstate.durable.state.tags import without_tags

Json = Any
_RULES = {
    "maxLength": "is longer than {} characters",
    "minLength": "is shorter than {} characters",
    "maximum": "must be at most {}",
    "minimum": "must be at least {}",
    "exclusiveMaximum": "must be less than {}",
    "exclusiveMinimum": "must be more than {}",
    "multipleOf": "must be a multiple of {}",
    "maxItems": "has more than {} items",
    "minItems": "has fewer than {} items",
    "maxProperties": "has more than {} fields",
    "minProperties": "has fewer than {} fields",
    "uniqueItems": "has the same item twice",
    "enum": "must be one of {}",
    "const": "must be {}",
    "pattern": "must match the regular expression {}",
    "format": "must be of the format {}",
    "additionalProperties": "has fields that the schema does not name",
    "unevaluatedProperties": "has fields that the schema does not name",
    "not": "must not match {}",
}
_CUT = 100
# What a list or an object breaks by what is seen of it, whatever the values in it are.
_OF_FORM = {
    *("type", "required", "minItems", "maxItems", "minProperties", "maxProperties", "additionalProperties"),
    "uniqueItems",  # each `Unseen` differs from all else
}


class Unseen:
    """Stands for a value that is hidden from a person who edits others beside it: nothing is said of it.

    It is valid wherever it stands, and equal to nothing else, so what is said does not depend on the value.
    """


class WrongSchemaError(ValueError):
    """A schema that is not a valid JSON schema. The message says why."""


@dataclass(frozen=True, slots=True)
class Unfit:
    """``why`` arguments do not fit a tool, as a sentence, and the ``argument`` that it is about; "" for several."""

    why: str
    argument: str = ""


def broken_rule(value: Json, schema: Json) -> str | None:
    """Where the value breaks which rule of the schema, such as ``claim.amount must be a number``; None if it is valid.

    :raises WrongSchemaError: for a schema that is not one.
    """
    validator = jsonschema.validators.validator_for(schema)
    has_unseen = _has_unseen(value)
    try:
        validator.check_schema(schema)
        errors = [
            error
            for error in validator(schema).iter_errors(value)
            if not has_unseen or _is_of_what_is_seen(error)
        ]
    except jsonschema.SchemaError as error:
        raise WrongSchemaError(error.message) from None
    except Unresolvable as error:
        raise WrongSchemaError(f"it refers to {error.ref!r}, which it does not have") from None
    if not errors:
        return None
    worst = best_match(errors)
    return f"{_place(worst)} {_rule(worst)}"


def unfit_arguments(
    tool: str,
    schema: Json,
    edited: Mapping[str, Json],
    requested: Mapping[str, Json],
    seen: Mapping[str, Json] | None = None,
) -> Unfit | None:
    """Why a call cannot run with these arguments in place of the requested ones; None if it can.

    Beyond the schema, none may be added that the tool does not have.

    :param edited: As a person has sent them: in the form in which they are stored, those that were not changed.
    :param requested: The arguments that the agent asked for, as they are stored.
    :param seen: Those of the edited ones of which the person has left something hidden, with an `Unseen` for it.
    :raises WrongSchemaError: for a schema that is not one.
    """
    unknown = set(edited) - set(schema.get("properties", {})) - set(requested)
    if unknown:
        return Unfit(f"{tool} has no argument {', '.join(sorted(unknown))}.")
    values = {
        name: without_tags(value) if name in requested and same_value(requested[name], value) else value
        for name, value in edited.items()
    }
    values |= seen or {}
    rule = broken_rule(values, schema)
    if rule is None:
        return None
    place = rule.partition(" ")[0]
    return Unfit(f"The arguments do not fit {tool}: {rule}.", place.partition(".")[0])


def _has_unseen(value: Json) -> bool:
    if isinstance(value, dict):
        return any(map(_has_unseen, value.values()))
    return any(map(_has_unseen, value)) if isinstance(value, list) else isinstance(value, Unseen)


def _is_of_what_is_seen(error: jsonschema.ValidationError) -> bool:
    """Whether the error is one whatever an `Unseen` stands for. Which branch of an `if` holds may depend on that."""
    if not {"then", "else"}.isdisjoint(error.absolute_schema_path):
        return False
    is_of_form = error.validator in _OF_FORM and not isinstance(error.instance, Unseen)
    return is_of_form or not _has_unseen(error.instance)


def _place(error: jsonschema.ValidationError) -> str:
    """The path in the value. A key that the schema does not name is part of the value, so it is left out."""
    declared = set(error.absolute_schema_path)
    parts = [str(part) if isinstance(part, int) or part in declared else "…" for part in error.absolute_path]
    return ".".join(parts) or "it"


def _rule(error: jsonschema.ValidationError) -> str:
    rule = str(error.validator)
    limit: Any = error.validator_value
    if rule == "type":
        return f"must be {_types(limit if isinstance(limit, list) else [limit])}"
    if rule == "required" and isinstance(error.instance, dict):
        return f"lacks {', '.join(name for name in limit if name not in error.instance)}"
    if rule in ("anyOf", "oneOf") and all(_is_of_type(option) for option in limit):
        return f"must be {_types(option['type'] for option in limit)}"
    text = json.dumps(limit, ensure_ascii=False, default=str)[:_CUT]
    return _RULES.get(rule, f"must satisfy {rule} {{}}").format(text)


def _is_of_type(option: Any) -> bool:
    return isinstance(option, dict) and isinstance(option.get("type"), str)


def _types(names: Iterable[str]) -> str:
    return " or ".join(dict.fromkeys(TYPE_WORDS.get(name, name) for name in names))
