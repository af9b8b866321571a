"""Breakpoints: where a session stops before the model is called, or before the calls of a tool, until it is resumed.

    Breakpoint()                                            # before the model
    Breakpoint("pay_back", when=("amount", ">", 100))       # before a call of this tool with such an argument

A condition is data, never code. Pure Python, so that an agent's module and the web processes can import it.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Literal

from agentstate.articles import an

Json = Any
Before = Literal["model", "tools"]
# What lets a call have arguments that are not among the properties of a schema.
_OPEN = ("additionalProperties", "patternProperties", "$ref", "allOf", "anyOf", "oneOf", "if")


class Comparison(StrEnum):
    """How an argument is compared. ``text`` is read between the argument and the value."""

    text: str

    def __new__(cls, value: str, text: str = "") -> "Comparison":
        member = str.__new__(cls, value)
        member._value_ = value
        member.text = text
        return member

    EQUAL = "=", "is"
    DIFFERENT = "!=", "is not"
    LESS = "<", "is less than"
    AT_MOST = "<=", "is at most"
    MORE = ">", "is more than"
    AT_LEAST = ">=", "is at least"
    CONTAINS = "contains", "contains"


@dataclass(frozen=True, slots=True)
class Condition:
    """A test of one argument of a call, as plain JSON. A call without the argument does not meet it.

    Only numbers, and only texts, are less or more than each other. A text contains a part of it, a list its items, an
    object its keys.
    """

    argument: str
    comparison: Comparison
    value: Json

    @classmethod
    def of(cls, parts: Sequence[Json]) -> "Condition":
        """
        :param parts: ``(argument, comparison, value)``.
        :raises ValueError: for anything else, an unknown comparison, or a value that is not JSON.
        """
        if not isinstance(parts, tuple | list) or len(parts) != 3:
            raise ValueError(
                f"A condition is (argument, comparison, value), such as ('amount', '>', 100), not {parts!r}."
            )
        argument, comparison, value = parts
        if comparison not in list(Comparison):
            raise ValueError(f"There is no comparison {comparison!r}. There are: {', '.join(Comparison)}.")
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ValueError(f"The value of a condition is plain JSON, not {value!r}.") from error
        return cls(argument, Comparison(comparison), value)

    def is_met(self, arguments: Mapping[str, Json]) -> bool:
        if self.argument not in arguments:
            return False
        return _TESTS[self.comparison](arguments[self.argument], self.value)


@dataclass(frozen=True, slots=True)
class Breakpoint:
    """
    :param tool: The tool before whose calls the session stops; "" to stop before the model is called.
    :param when: The condition that a call has to meet: ``(argument, comparison, value)``. None for every call.
    :param once: The breakpoint is removed when it has stopped the session.
    :param number: By which a session knows it; 0 for one that is set in code.
    :raises TypeError: for a tool that is not named by a text.
    :raises ValueError: for a condition without a tool, or one that is not as `Condition.of` takes it.
    """

    tool: str = ""
    when: Condition | tuple[str, str, Json] | None = None
    once: bool = False
    number: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.tool, str):
            raise TypeError(f"Breakpoint: the tool is given by its name, a text, not as {an(self.tool)}.")
        if self.when is not None and not self.tool:
            raise ValueError(
                "Only a breakpoint before a tool has a condition: it is about the tool's arguments."
            )
        if self.when is not None and not isinstance(self.when, Condition):
            object.__setattr__(self, "when", Condition.of(self.when))

    @property
    def condition(self) -> Condition | None:
        return self.when if isinstance(self.when, Condition) else None

    @property
    def label(self) -> str:
        """Where it stops, in words. The value of its condition is left out: it may have to be hidden."""
        if not self.tool:
            return "before the model"
        return f"before {self.tool}" + (f", by its {self.condition.argument}" if self.condition else "")

    def stops(self, tool: str, arguments: Mapping[str, Json]) -> bool:
        """Whether it stops a session before this call."""
        return self.tool == tool and (self.condition is None or self.condition.is_met(arguments))

    def to_dict(self) -> dict[str, Json]:
        """As plain JSON. The value stands under the argument's name, by which it may have to be hidden."""
        when = self.condition
        return {
            "number": self.number,
            "tool": self.tool,
            "when": {"comparison": when.comparison.value, "argument": {when.argument: when.value}}
            if when
            else None,
            "once": self.once,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Json]) -> "Breakpoint":
        when = None
        if data.get("when"):
            [(argument, value)] = data["when"]["argument"].items()
            when = Condition(argument, Comparison(data["when"]["comparison"]), value)
        return cls(data["tool"], when, data.get("once", False), data.get("number", 0))


def checked_breakpoints(given: Any) -> tuple[Breakpoint, ...]:
    """The breakpoint, or each of several; none for None.

    :raises TypeError: for anything else, with what to give.
    """
    if given is None:
        return ()
    is_one = isinstance(given, Breakpoint | str) or not isinstance(given, Iterable)
    breakpoints = (given,) if is_one else tuple(given)
    for item in breakpoints:
        if not isinstance(item, Breakpoint):
            tool = repr(item if isinstance(item, str) else "the name of a tool")
            raise TypeError(
                f"This is {an(item)}, not a Breakpoint. Breakpoint({tool}) stops before that "
                "tool, and Breakpoint() before the model."
            )
    return breakpoints


@dataclass(frozen=True, slots=True)
class Place:
    """A place in a turn at which breakpoints stop: before the model of a step, or before the tools of a step.

    `step` counts the finished steps of the session.
    """

    before: Before
    step: int

    def to_dict(self) -> dict[str, Json]:
        return {"before": self.before, "step": self.step}

    @classmethod
    def from_dict(cls, data: Mapping[str, Json]) -> "Place":
        return cls(data["before"], data["step"])


def stored_breakpoints(data: Iterable[Mapping[str, Json]] | None) -> tuple[Breakpoint, ...]:
    """Those of a session, from plain JSON."""
    return tuple(map(Breakpoint.from_dict, data or ()))


def why_no_such_argument(breakpoint: Breakpoint, schema: Mapping[str, Json]) -> str:
    """Why no call of the tool can have the argument of the condition; "" if one can, as far as its schema tells.

    :param schema: The JSON schema of the tool's arguments. Like Haystack's own it is taken as complete, unless it
        allows other properties or refers to another schema.
    """
    properties = schema.get("properties")
    if breakpoint.condition is None or not isinstance(properties, Mapping) or any(map(schema.get, _OPEN)):
        return ""
    argument = breakpoint.condition.argument
    if argument in properties:
        return ""
    has = ", ".join(sorted(properties)) or "none"
    return f"The tool {breakpoint.tool} has no argument {argument!r}. It has: {has}."


def same_value(first: Json, second: Json) -> bool:
    """Whether two JSON values are the same; `1` is `1.0`, but not `true`."""
    if isinstance(first, bool) or isinstance(second, bool):
        return first is second
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(same_value(first[key], second[key]) for key in first)
    if isinstance(first, list) and isinstance(second, list):
        return len(first) == len(second) and all(map(same_value, first, second))
    return bool(first == second)


def _are_ordered(first: Json, second: Json) -> bool:
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in (first, second))
    return numbers or (isinstance(first, str) and isinstance(second, str))


def _contains(whole: Json, part: Json) -> bool:
    if isinstance(whole, str):
        return isinstance(part, str) and part in whole
    if isinstance(whole, list):
        return any(same_value(item, part) for item in whole)
    return isinstance(whole, dict) and isinstance(part, str) and part in whole


_TESTS: Final[dict[Comparison, Callable[[Json, Json], bool]]] = {
    Comparison.EQUAL: same_value,
    Comparison.DIFFERENT: lambda present, value: not same_value(present, value),
    Comparison.LESS: lambda present, value: _are_ordered(present, value) and bool(present < value),
    Comparison.AT_MOST: lambda present, value: _are_ordered(present, value) and bool(present <= value),
    Comparison.MORE: lambda present, value: _are_ordered(present, value) and bool(present > value),
    Comparison.AT_LEAST: lambda present, value: _are_ordered(present, value) and bool(present >= value),
    Comparison.CONTAINS: _contains,
}
