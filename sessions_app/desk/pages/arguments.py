"""A tool's arguments as form fields, by the tool's JSON schema; and what was typed back as arguments. No queries."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sessions_app.access.masking import HIDDEN

PREFIX = "arg-"


@dataclass(frozen=True, slots=True)
class Field:
    """One argument. ``kind`` is text, long, number, yesno, choice or json; ``value`` is what stands in the field."""

    name: str
    label: str
    kind: str
    value: str
    asked: str
    help: str = ""
    choices: list[str] = field(default_factory=list)

    @property
    def input_name(self) -> str:
        return PREFIX + self.name


class WrongValue(ValueError):
    """What was typed for an argument is no value of its type."""


def fields(
    arguments: Mapping[str, Any],
    schema: Mapping[str, Any],
    typed: Mapping[str, str] | None = None,
    *,
    edited: Mapping[str, Any] | None = None,
) -> list[Field]:
    """A field for each argument that the tool may be given. ``typed`` is what a person wrote before, if anything.

    ``edited`` are the arguments of an earlier decision: they stand in the fields, unless others were typed.
    """
    current = arguments if edited is None else edited
    properties: Mapping[str, Any] = schema.get("properties", {})
    found = []
    for name in [*arguments, *(name for name in properties if name not in arguments)]:
        about = properties.get(name, {})
        kind = _kind(about, arguments.get(name))
        asked = _text(kind, arguments[name]) if name in arguments else ""
        value = (typed or {}).get(PREFIX + name, _text(kind, current[name]) if name in current else "")
        choices = (
            ["true", "false"]
            if kind == "yesno"
            else [_text("json", c) if not isinstance(c, str) else c for c in about.get("enum", [])]
        )
        found.append(
            Field(
                name,
                str(about.get("title", name)),
                kind,
                value,
                asked,
                str(about.get("description", "")),
                choices,
            )
        )
    return found


def read(typed: Mapping[str, str], arguments: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that were typed, in the types of the schema; those not on the form stay as they were.

    :raises WrongValue: naming the argument.
    """
    edited = dict(arguments)
    for one in fields(arguments, schema):
        text = typed.get(one.input_name)
        if text is None or text == one.asked:
            continue
        if text == "" and one.kind not in ("text", "long"):
            if one.name in arguments:
                edited.pop(one.name)
            continue
        edited[one.name] = _value(one, text, schema.get("properties", {}).get(one.name, {}))
    return edited


def _kind(about: Mapping[str, Any], value: Any) -> str:
    if value == HIDDEN:
        return "json"  # a field of its type could not hold it, and would send something else back
    if about.get("enum"):
        return "choice"
    declared = about.get("type")
    if declared == "boolean" or (declared is None and isinstance(value, bool)):
        return "yesno"
    if declared in ("number", "integer") or (declared is None and isinstance(value, int | float)):
        return "number"
    if declared == "string" or (declared is None and isinstance(value, str)):
        return "long" if isinstance(value, str) and (len(value) > 60 or "\n" in value) else "text"
    return "json"


def _text(kind: str, value: Any) -> str:
    if isinstance(value, str) and kind in ("text", "long", "choice"):
        return value
    return json.dumps(value, ensure_ascii=False)


def _value(one: Field, text: str, about: Mapping[str, Any]) -> Any:
    match one.kind:
        case "text" | "long":
            return text
        case "choice":
            return next((c for c in about["enum"] if c == text or json.dumps(c) == text), text)
    try:
        value = json.loads(text)
    except ValueError:
        what = {"number": "a number", "yesno": "true or false"}.get(one.kind, "valid JSON")
        raise WrongValue(f"{one.label} must be {what}, not “{text}”.") from None
    if one.kind == "number" and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise WrongValue(f"{one.label} must be a number, not “{text}”.")
    return value
