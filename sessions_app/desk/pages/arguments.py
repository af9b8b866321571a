"""A tool's arguments as form fields, by the tool's JSON schema, and back. No queries."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentstate.durable.json_types import TYPE_WORDS
from agentstate.names import TYPE_TAG
from sessions_app.access.errors import Invalid
from sessions_app.access.masking import HIDDEN, Mask
from sessions_app.access.typed import (
    cut,
    read_json,
    read_number,
    with_line_ends_of,
    with_plain_line_ends,
)
from sessions_app.desk.pages.formats import Currency, currency, formatted
from sessions_app.invisible import escaped_in_json
from sessions_app.wording import shorten

PREFIX = "arg-"
# Of a field for a hidden value: one of its own type could not hold it, and would send another value back.
HIDDEN_KIND = "json"
# Characters of one argument in the sentence about a call.
LONGEST_IN_SENTENCE = 80


@dataclass(frozen=True, slots=True)
class Asked:
    """What is shown of an argument that was asked for: see the fields and properties of `Field` with these names."""

    label: str
    input_name: str
    in_sentence: str
    unchanged: str
    default: str
    shown_requested: str
    shown_default: str
    shown: str
    changed: bool
    currency: Currency | None


@dataclass(frozen=True, slots=True)
class Field:
    """One argument.

    kind: text, long, number, yesno, choice or json.
    value: the text in the field. ``requested``: what the agent asked for, as the same kind of text.
    default: what the tool uses for an argument that the agent left out; "" for one that it asked for.
    choices: what the schema allows, for yesno and choice.
    shown, shown_requested, shown_default: each as people write it, by the format of the tool's policy.
    currency: of an argument that the policy formats as money.
    """

    name: str
    label: str
    kind: str
    value: str
    requested: str
    help: str = ""
    choices: tuple[str, ...] = ()
    prefix: str = PREFIX
    shown: str = ""
    shown_requested: str = ""
    default: str = ""
    shown_default: str = ""
    currency: Currency | None = None

    @property
    def input_name(self) -> str:
        return self.prefix + self.name

    @property
    def unchanged(self) -> str:
        """What is in the field where nobody has changed the argument."""
        return self.requested or self.default

    @property
    def in_sentence(self) -> str:
        """As the sentence about the call shows the argument where nobody has changed it."""
        return shorten(self.shown_requested or self.shown_default or "–", LONGEST_IN_SENTENCE)

    @property
    def changed(self) -> bool:
        return self.value != self.unchanged

    @property
    def asked(self) -> Asked:
        """Without what only a field for editing has: a tool may say much about its arguments, and allow many values."""
        return Asked(
            label=self.label,
            input_name=self.input_name,
            in_sentence=self.in_sentence,
            unchanged=self.unchanged,
            default=self.default,
            shown_requested=self.shown_requested,
            shown_default=self.shown_default,
            shown=self.shown if self.changed else "",
            changed=self.changed,
            currency=self.currency,
        )

    @property
    def options(self) -> list[str]:
        """The choices, after what is in the field or was asked for and is none: a field left alone changes nothing."""
        others = [text for text in dict.fromkeys((self.value, self.unchanged)) if text not in self.choices]
        return [*others, *self.choices]


class WrongValue(ValueError):
    """What was typed for an argument is not a value of its type."""

    def __init__(self, text: str, argument: str) -> None:
        super().__init__(text)
        self.argument = argument


def fields(
    arguments: Mapping[str, Any],
    schema: Mapping[str, Any],
    typed: Mapping[str, str] | None = None,
    *,
    edited: Mapping[str, Any] | None = None,
    prefix: str = PREFIX,
    formats: Mapping[str, str] | None = None,
) -> tuple[Field, ...]:
    """A field for each argument that the tool takes. ``typed`` is what a person typed before, by input name.

    ``edited`` are the arguments of an earlier decision. They are in the fields, unless others were typed. ``prefix``
    begins the name of each input: forms of several calls need different ones. ``formats`` are those of the policy.
    An argument that is left out has its default in the field, see `published_tool`.
    """
    current = arguments if edited is None else edited
    defaults = defaults_of(schema)
    properties: Mapping[str, Any] = schema.get("properties", {})
    result = []
    for name in [*arguments, *(name for name in properties if name not in arguments)]:
        argument_schema = schema_of(name, schema)
        kind = _kind(argument_schema, arguments.get(name, defaults.get(name)))
        if current.get(name) == HIDDEN:
            kind = HIDDEN_KIND
        requested = _text(kind, arguments[name]) if name in arguments else ""
        default = _text(kind, defaults[name]) if name in defaults else ""
        present = _text(kind, current[name]) if name in current else default
        if name in arguments:
            default = ""
        value = with_line_ends_of(present, (typed or {}).get(prefix + name, present))
        format = (formats or {}).get(name, "")
        result.append(
            Field(
                name,
                label(name, schema),
                kind,
                value,
                requested,
                str(argument_schema.get("description", "")),
                _choices(kind, argument_schema),
                prefix,
                _shown(kind, value, format),
                _shown(kind, requested, format),
                default,
                _shown(kind, default, format),
                currency(format),
            )
        )
    return tuple(result)


def unfit(arguments: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    """Which arguments are of another type than the tool takes, as sentences; "" where none is.

    It looks at the arguments themselves, and not into them: a page has many requests. One that is missing may be given
    to the tool by Haystack, from the State.
    """
    return " ".join(
        f"{label(name, schema)} is not {' or '.join(TYPE_WORDS[each] for each in types)}."
        for name, value in arguments.items()
        if (types := _types(schema_of(name, schema)))
        and not any(_is_of_type(value, each) for each in types)
        and not (isinstance(value, str) and HIDDEN in value)
        and not (isinstance(value, dict) and TYPE_TAG in value)
    )


def _types(schema: Mapping[str, Any]) -> list[str]:
    """The types that the schema allows; none where it says more, or something else."""
    types = schema.get("type", [])
    types = types if isinstance(types, list) else [types]
    return types if all(each in TYPE_WORDS for each in types) else []


def _is_of_type(value: Any, name: str) -> bool:
    """As JSON Schema has it: a number without a fraction is an integer, and a yes or no is no number."""
    if isinstance(value, bool) or value is None:
        return name == {True: "boolean", False: "boolean", None: "null"}[value]
    if isinstance(value, int | float):
        return name == "number" or (name == "integer" and value % 1 == 0)
    return isinstance(value, {"string": str, "array": list, "object": dict}.get(name, ()))


def _choices(kind: str, schema: Mapping[str, Any]) -> tuple[str, ...]:
    if kind == "yesno":
        return ("true", "false")
    return tuple([_text(kind, choice) for choice in schema["enum"]]) if kind == "choice" else ()


def schema_of(name: str, schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema of an argument; empty if there is none, or if it is ``true`` or ``false``, which describe nothing."""
    found = schema.get("properties", {}).get(name)
    return found if isinstance(found, dict) else {}


def defaults_of(schema: Mapping[str, Any]) -> dict[str, Any]:
    """What the tool uses for the arguments that a call leaves out, as far as its schema says it."""
    return {
        name: default
        for name in schema.get("properties", {})
        if (default := schema_of(name, schema).get("default")) is not None
        and name not in schema.get("required", ())
    }


def with_hidden_defaults(schema: Mapping[str, Any], mask: Mask) -> dict[str, Any]:
    """The schema of a tool with its defaults as they are shown: each is hidden by the name of its argument."""
    properties = dict(schema.get("properties", {}))
    for name, default in defaults_of(schema).items():
        properties[name] = {**properties[name], "default": mask.named(name, default)}
    return {**schema, "properties": properties} if properties else dict(schema)


def label(name: str, schema: Mapping[str, Any]) -> str:
    """The argument's title in the tool's schema; without one ``Claim number`` of ``claim_number``."""
    title = schema_of(name, schema).get("title")
    return str(title or name.replace("_", " ").strip().capitalize() or name)


def read(
    typed: Mapping[str, str], arguments: Mapping[str, Any], schema: Mapping[str, Any], *, prefix: str = PREFIX
) -> dict[str, Any]:
    """The arguments that were typed, in the types of the schema; those not on the form stay as they were.

    :raises WrongValue: naming the argument.
    """
    edited = dict(arguments)
    for argument in fields(arguments, schema, prefix=prefix):
        name, sent = argument.name, typed.get(argument.input_name)
        if sent is None:
            continue
        text = with_line_ends_of(argument.unchanged, sent)
        if text == argument.unchanged:
            continue
        if text == "" and argument.kind not in ("text", "long"):
            edited.pop(name, None)
            continue
        edited[name] = _value(argument, text, schema_of(name, schema))
    return edited


def _kind(schema: Mapping[str, Any], value: Any) -> str:
    if value == HIDDEN:
        return HIDDEN_KIND
    if schema.get("enum"):
        return "choice"
    declared = schema.get("type")
    if declared == "boolean" or (declared is None and isinstance(value, bool)):
        return "yesno"
    if declared in ("number", "integer") or (declared is None and isinstance(value, int | float)):
        return "number"
    if declared == "string" or (declared is None and isinstance(value, str)):
        return (
            "long"
            if isinstance(value, str) and (len(value) > 60 or "\n" in with_plain_line_ends(value))
            else "text"
        )
    return "json"


def _text(kind: str, value: Any) -> str:
    if isinstance(value, str) and kind in ("text", "long", "choice"):
        return value
    return escaped_in_json(json.dumps(value, ensure_ascii=False))


def _shown(kind: str, text: str, format: str) -> str:
    """The text of a field as its format has it; as it is where it has none, or is no value of its type."""
    if not text or not format:
        return text
    try:
        value = (
            text if kind in ("text", "long") else read_number(text) if kind == "number" else read_json(text)
        )
    except Invalid:
        return text
    return formatted(value, format)


def _value(argument: Field, text: str, schema: Mapping[str, Any]) -> Any:
    match argument.kind:
        case "text" | "long":
            return text
        case "choice":
            return next((c for c in schema["enum"] if text in (c, _text("choice", c))), text)
    try:
        value = read_number(text) if argument.kind == "number" else read_json(text)
    except Invalid as error:
        expected = {"number": "a number", "yesno": "true or false"}.get(argument.kind)
        is_number = argument.kind == "number" and cut(text) not in str(error)  # one that cannot be stored
        if expected is None or is_number:
            problem = f"{argument.label}: {error}"
        else:
            problem = f"{argument.label} must be {expected}, not “{cut(text)}”."
        raise WrongValue(problem, argument.name) from None
    return value
