"""The totals of a history, stored without their names: each checkpoint has totals, and names were four fifths of them.

The text is the numbers in the order of `NAMES`, separated by commas, with nothing between two commas for what has not
been counted. Totals with anything else in them are JSON with their names, as all were in earlier versions.
"""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from django.db import models

Totals = dict[str, Any]
if TYPE_CHECKING:
    _Field = models.Field[Totals, Totals]
else:
    _Field = models.Field  # which takes no types when the program runs

# Stored numbers are known by their places here: names are added at the end, and none is ever removed or moved.
NAMES: Final[tuple[tuple[str, str], ...]] = (
    ("", "steps"),
    ("", "model_calls"),
    ("", "tool_calls"),
    ("", "prompt_tokens"),
    ("", "completion_tokens"),
    ("", "model_seconds"),
    ("", "tool_seconds"),
    ("edges", "idle>planning"),
    ("edges", "planning>executing"),
    ("edges", "executing>reflecting"),
    ("edges", "reflecting>planning"),
    ("edges", "reflecting>done"),
    ("edges", "done>planning"),
    ("edges", "planning>done"),
    ("visits", "planning"),
    ("visits", "executing"),
    ("visits", "reflecting"),
    ("visits", "done"),
    ("seconds", "idle"),
    ("seconds", "planning"),
    ("seconds", "executing"),
    ("seconds", "reflecting"),
    ("seconds", "done"),
    ("", "tool_errors"),
    ("", "failed_model_calls"),
    ("", "cached"),
    ("", "cached_replies"),
    ("edges", "planning>error"),
    ("edges", "executing>error"),
    ("edges", "reflecting>error"),
    ("edges", "error>planning"),
    ("visits", "error"),
    ("seconds", "error"),
)
_PLACES: Final[Mapping[str, Mapping[str, int]]] = {
    group: {name: place for place, (of, name) in enumerate(NAMES) if of == group} for group, _ in NAMES
}
_BESIDE_GROUPS: Final = _PLACES[""]


def pack(totals: Totals) -> str:
    """The text that is stored; "" for no totals."""
    texts = [""] * len(NAMES)
    for key, value in totals.items():
        if type(value) is dict and value and key and key in _PLACES:
            places, numbers = _PLACES[key], value
        else:
            places, numbers = _BESIDE_GROUPS, {key: value}
        for name, number in numbers.items():
            place = places.get(name)
            if place is None or type(number) not in (int, float):
                return json.dumps(totals)
            texts[place] = repr(number)
    return ",".join(texts).rstrip(",")


def unpack(text: str) -> Totals:
    """The totals that were packed into the text, or were stored as JSON.

    :raises ValueError: if a later version has packed them, and they have numbers that are unknown here.
    """
    if text.startswith("{"):
        stored: Totals = json.loads(text)
        return stored
    numbers_in_order = text.split(",")
    if len(numbers_in_order) > len(NAMES):
        raise ValueError("These totals were stored by a later version, which counts more than this one.")
    totals: Totals = {}
    for (group, name), number in zip(NAMES, numbers_in_order, strict=False):
        if number:
            numbers = totals.setdefault(group, {}) if group else totals
            numbers[name] = int(number) if number.lstrip("-").isdecimal() else float(number)
    return totals


class TotalsField(_Field):
    """A dict in Python, a text as of `pack` in the database."""

    def get_internal_type(self) -> str:
        return "TextField"

    def from_db_value(self, value: str | None, expression: Any, connection: Any) -> Totals | None:
        return None if value is None else unpack(value)

    def to_python(self, value: Any) -> Totals | None:
        return unpack(value) if isinstance(value, str) else value

    def get_prep_value(self, value: Totals | None) -> str | None:
        return None if value is None else pack(value)

    def value_to_string(self, obj: models.Model) -> str:
        return pack(self.value_from_object(obj))
