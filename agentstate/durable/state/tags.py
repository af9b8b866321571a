"""Stored values without building them: to and from plain data, and whether tagged values are well-formed.

Unlike `encoding`, this module does not import Haystack, so web processes can use it.
"""

import json
import math
from base64 import b64decode
from collections.abc import Callable, Hashable, Iterator, Set
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

from agentstate.names import STAND_IN_TAG, TYPE_TAG

Json = Any


def as_plain_data(value: Json) -> Json:
    """The encoded form of plain JSON: what `decode` returns for it is the value itself, also if it has type tags."""
    if isinstance(value, list):
        return [as_plain_data(item) for item in value]
    if not isinstance(value, dict):
        return value
    if TYPE_TAG in value:
        return {TYPE_TAG: "dict", "value": [[key, as_plain_data(item)] for key, item in value.items()]}
    return {key: as_plain_data(item) for key, item in value.items()}


def in_stored_order(data: dict[str, Json]) -> Json:
    """The object with a tag that keeps the order of its keys, if PostgreSQL's jsonb would change it."""
    if list(data) == sorted(data, key=_as_postgres_orders):
        return data
    return {TYPE_TAG: "ordered", "keys": list(data), "value": data}


def as_stored_float(value: float) -> Json:
    """The number, with a tag if there are databases that do not return it unchanged, as plain JSON."""
    if -1e16 < value < 1e16 and (value != 0 or math.copysign(1, value) > 0):
        return value
    return {TYPE_TAG: "float", "value": repr(value)}


def with_order(value: Json) -> Json:
    """An encoded value without the tags that databases make necessary, for the order of keys and for some numbers, with
    them: as `encoding` writes it.
    """
    if type(value) is float:
        return as_stored_float(value)
    if isinstance(value, list):
        return [with_order(item) for item in value]
    if not isinstance(value, dict):
        return value
    if TYPE_TAG not in value:
        return in_stored_order({key: with_order(item) for key, item in value.items()})
    inner = value.get("value")
    if isinstance(inner, dict) and value[TYPE_TAG] not in _CONTAINERS:
        # The fields of an object of Haystack, see `encoding`.
        meta = {name: with_order(item) for name, item in inner.items() if name == "meta"}
        return {**value, "value": {**inner, **meta}}
    return {**value, "value": with_order(inner)}


def without_order(value: Json) -> Json:
    """An encoded value without those tags, with its keys in that order: what a person edits.

    Other tags are kept, and so are those of numbers inside of tagged values.
    """
    return _without_order(value, numbers=True)


def _without_order(value: Json, *, numbers: bool) -> Json:
    if isinstance(value, list):
        return [_without_order(item, numbers=numbers) for item in value]
    if not isinstance(value, dict):
        return value
    inner: Json = value.get("value")
    tag = value.get(TYPE_TAG)
    if numbers and tag == "float" and _is_read_by(float, inner) and math.isfinite(float(inner)):
        return float(inner)
    if tag == "ordered" and _is_ordered({"keys": value.get("keys"), "value": inner}):
        return {key: _without_order(inner[key], numbers=numbers) for key in value["keys"]}
    numbers = numbers and TYPE_TAG not in value
    return {key: _without_order(item, numbers=numbers) for key, item in value.items()}


def without_tags(value: Json) -> Json:
    """The encoded value as plain JSON, for people and for programs that only read: all that is exported or shown.

    Objects are their fields, dates and decimals text, sets and tuples lists, time spans seconds; the types are lost. A
    key that is no string becomes its JSON text. Any JSON is taken, also what `decode` refuses and what was masked.
    """
    if isinstance(value, list):
        return [without_tags(item) for item in value]
    if not isinstance(value, dict):
        return value
    if TYPE_TAG not in value:
        return {key: without_tags(item) for key, item in value.items()}
    inner: Json = value.get("value")
    match value[TYPE_TAG]:
        case "dict" if _is_dict({"value": inner}):
            pairs = [(without_tags(key), without_tags(item)) for key, item in inner]
            return {key if isinstance(key, str) else json.dumps(key): item for key, item in pairs}
        case "ordered" if _is_ordered({"keys": value.get("keys"), "value": inner}):
            return {key: without_tags(inner[key]) for key in value["keys"]}
        case "float" if _is_read_by(float, inner) and math.isfinite(float(inner)):
            return float(inner)
        case "timedelta" if _is_timedelta({"value": inner}):
            return timedelta(*(inner if isinstance(inner, list) else [0, inner])).total_seconds()
    return without_tags(inner)


def stand_ins(value: Json) -> list[str]:
    """The names of the types in whose place plain data or a text is stored, each once, from the outside inwards."""
    names = [tagged.get("of") for tagged in tagged_values(value) if tagged[TYPE_TAG] == STAND_IN_TAG]
    return list(dict.fromkeys(name for name in names if isinstance(name, str)))


def tagged_values(value: Json) -> Iterator[dict[str, Json]]:
    """All tagged values in an encoded value, from the outside inwards."""
    if isinstance(value, list):
        for item in value:
            yield from tagged_values(item)
    elif isinstance(value, dict):
        if TYPE_TAG in value:
            yield value
        for item in value.values():
            yield from tagged_values(item)


def is_well_formed(tagged: dict[str, Json], shapes: Set[Hashable]) -> bool:
    """Whether `decode` can read this tagged value, not looking at the values in it.

    :param shapes: The `shape` of tagged values that can be read. An object of Haystack must have one of them.
    """
    tag, value = tagged[TYPE_TAG], tagged.get("value")
    if not isinstance(tag, str) or tagged.keys() != {TYPE_TAG, "value", *_MORE_KEYS.get(tag, ())}:
        return False
    if tag in _SCALARS:
        return _is_read_by(_SCALARS[tag], value)
    if tag in _CONTAINERS:
        return _CONTAINERS[tag](tagged)
    return shape(tagged) in shapes


def shape(tagged: dict[str, Json]) -> Hashable:
    """The type of a tagged value, and the names and types of its fields if it is an object."""
    value = tagged.get("value")
    fields = value.items() if isinstance(value, dict) else ()
    return str(tagged[TYPE_TAG]), frozenset((name, type(item)) for name, item in fields)


def _is_read_by(read: Callable[[Any], Any], value: Json) -> bool:
    if not isinstance(value, str):
        return False
    try:
        read(value)
    except (ValueError, ArithmeticError):
        return False
    return True


def _is_timedelta(tagged: dict[str, Json]) -> bool:
    value = tagged["value"]
    parts = value if isinstance(value, list) and len(value) <= 3 else [0, value]
    try:
        timedelta(*parts)
    except (TypeError, ValueError, OverflowError):
        return False
    return True


def _is_ordered(tagged: dict[str, Json]) -> bool:
    keys, value = tagged["keys"], tagged["value"]
    if not isinstance(keys, list) or not isinstance(value, dict):
        return False
    return all(isinstance(key, str) for key in keys) and len(keys) == len(value) and set(keys) == value.keys()


def _as_postgres_orders(key: str) -> tuple[int, bytes]:
    data = key.encode()
    return len(data), data


def _is_dict(tagged: dict[str, Json]) -> bool:
    pairs = tagged["value"]
    return isinstance(pairs, list) and all(
        isinstance(pair, list) and len(pair) == 2 and _is_hashable(pair[0]) for pair in pairs
    )


def _is_mapping(value: Json) -> bool:
    return isinstance(value, dict) and value.get(TYPE_TAG, "dict") in ("dict", "ordered")


def _is_set(tagged: dict[str, Json]) -> bool:
    """Equal items would be one in the set that is built, so that the page would show another set than the agent has."""
    items = tagged["value"]
    if not isinstance(items, list) or not all(map(_is_hashable, items)):
        return False
    told_apart = [item for item in items if not _is_not_equal_to_itself(item)]
    return len({json.dumps(item) if isinstance(item, dict) else item for item in told_apart}) == len(
        told_apart
    )


def _is_not_equal_to_itself(item: Json) -> bool:
    return isinstance(item, dict) and (item[TYPE_TAG] == STAND_IN_TAG or item.get("value") == "nan")


def _is_hashable(value: Json) -> bool:
    if isinstance(value, dict):
        tag = value.get(TYPE_TAG)
        members = value.get("value") if tag in ("tuple", "frozenset") else []
        if tag == STAND_IN_TAG:
            return _is_hashable(value.get("value"))
        is_known = (tag in _SCALARS and tag != "bytearray") or tag in ("timedelta", "tuple", "frozenset")
        return is_known and isinstance(members, list) and all(map(_is_hashable, members))
    return not isinstance(value, list)


# The keys of a tagged value beside its tag and its value.
_MORE_KEYS = {"ordered": ("keys",), "defaultdict": ("of",), STAND_IN_TAG: ("of",)}
_SCALARS: dict[str, Callable[[Any], Any]] = {
    "float": float,
    "int": lambda text: int(text, 16),
    "datetime": datetime.fromisoformat,
    "date": date.fromisoformat,
    "decimal": Decimal,
    "uuid": UUID,
    "bytes": b64decode,
    "bytearray": b64decode,
    "time": time.fromisoformat,
    "path": Path,
}
_CONTAINERS: dict[str, Callable[[dict[str, Json]], bool]] = {
    "timedelta": _is_timedelta,
    "ordered": _is_ordered,
    "dict": _is_dict,
    "tuple": lambda tagged: isinstance(tagged["value"], list),
    "set": _is_set,
    "frozenset": _is_set,
    "deque": lambda tagged: isinstance(tagged["value"], list),
    "ordered_dict": lambda tagged: _is_mapping(tagged["value"]),
    "counter": lambda tagged: _is_mapping(tagged["value"]),
    "defaultdict": lambda tagged: isinstance(tagged["of"], str) and _is_mapping(tagged["value"]),
    STAND_IN_TAG: lambda tagged: isinstance(tagged["of"], str),
}
