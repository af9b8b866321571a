"""The outcome of a call in doubt as a person enters it, checked before it is recorded.

A result is never empty: a tool that returns nothing is a choice of its own. Where the workers publish what a tool
returns, the result must be that. No rows are written here.
"""

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from agentstate.durable.schemas import WrongSchemaError, broken_rule
from agentstate.names import TYPE_TAG
from sessions_app.access.errors import Invalid
from sessions_app.access.typed import read_json
from sessions_app.actions.base import json_object, optional_result, required_text
from sessions_app.models import RegisteredAgent, Session

Json = Any
NO_RESULT = "Enter what the tool returned, or choose that it returns nothing."


class DoubtDecision(StrEnum):
    """What a person chose for a call in doubt. The values stand in the audit trail."""

    RESULT = "result"
    NOTHING = "nothing"
    AGAIN = "again"
    SKIP = "skip"


@dataclass(frozen=True, slots=True)
class Outcome:
    """``text`` is the result as it was typed, or the message to the model for a call that is skipped."""

    decision: DoubtDecision
    text: str = ""


def one_outcome(*, result: str | None, nothing: bool, again: bool, skip: str | None) -> Outcome:
    """The one that was chosen.

    :raises Invalid: unless it is exactly one, and for an empty result or message.
    """
    if (result is not None) + nothing + again + (skip is not None) != 1:
        raise Invalid(
            "Choose one: enter the call's result, say that it returns nothing, run it again, or skip it."
        )
    if result is not None:
        text = optional_result(result)
        if not text:
            raise Invalid(NO_RESULT)
        return Outcome(DoubtDecision.RESULT, text)
    if skip is not None:
        return Outcome(DoubtDecision.SKIP, required_text("The message to the model", skip))
    return Outcome(DoubtDecision.NOTHING if nothing else DoubtDecision.AGAIN)


def stored_result(session: Session, tool: str, outcome: Outcome) -> Json:
    """The result to store: the text, or the value that it is the JSON of, where the tool is known to return no text.

    One query.

    :raises Invalid: naming the place and the rule, for a result that the tool cannot have returned.
    """
    value: Json = outcome.text if outcome.decision == DoubtDecision.RESULT else None
    published = RegisteredAgent.objects.filter(key=session.agent).values_list("tools", flat=True).first()
    schema = next((row.get("output") for row in published or [] if row["name"] == tool), None)
    if schema is None or _problem(value, schema) is None:
        return value
    if value is None:
        raise Invalid(f"{tool} returns a result: enter it.")
    try:
        value = read_json(value)
    except Invalid as error:
        # Where a person has written a sentence, the place of the mistake in its JSON says nothing to them.
        is_sentence = not outcome.text.lstrip().startswith(("{", "["))
        detail = "" if is_sentence else f" {error}"
        raise Invalid(
            f"{tool} returns {_kind(schema)}, not text: enter its result as JSON{_example(schema)}.{detail}"
        ) from None
    json_object("The result", {"result": value})
    if f'"{TYPE_TAG}"' in json.dumps(value):
        raise Invalid(f"The result cannot contain the key {TYPE_TAG!r}.")
    if (problem := _problem(value, schema)) is not None:
        raise Invalid(f"{tool} cannot have returned that: {problem}.")
    return value


def _problem(value: Json, schema: dict[str, Json]) -> str | None:
    """Where the value breaks which rule of the schema; None if it is valid, or if the schema is not."""
    try:
        return broken_rule(value, schema)
    except WrongSchemaError:
        return None


def _kind(schema: dict[str, Json]) -> str:
    names = {"object": "an object", "array": "a list", "number": "a number", "integer": "a whole number"}
    return names.get(str(schema.get("type")), "another value")


def _example(schema: dict[str, Json]) -> str:
    """How such a value is written, with the names of the object's first properties."""
    if schema.get("type") != "object":
        return ""
    names = list(schema.get("properties") or {"name": {}})
    return f", such as {json.dumps(dict.fromkeys(names[:3], 'value'), ensure_ascii=False)}"
