"""The parts of the domain's records: immutable plain JSON, tuples, and times in UTC."""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from types import UnionType
from typing import Any, TypeVar

from agentstate.articles import an, with_article

Clock = Callable[[], datetime]
Json = Any
T = TypeVar("T")


class FrozenDict(Mapping[str, Json]):
    """An immutable mapping: hashable, ordered, equal to any mapping that is the same JSON."""

    __slots__ = ("_items",)
    _items: dict[str, Json]

    def __init__(self, items: Mapping[str, Json], path: str = "") -> None:
        frozen = {_key(key, path): freeze(value, f"{path}[{key!r}]") for key, value in items.items()}
        object.__setattr__(self, "_items", frozen)

    def __getitem__(self, key: str) -> Json:
        return self._items[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mapping) and bool(thaw(self) == thaw(other))

    def __hash__(self) -> int:
        return hash(frozenset(self._items.items()))

    def __repr__(self) -> str:
        return f"FrozenDict({self._items!r})"

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"A FrozenDict cannot be changed: {name} stays as it is.")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"A FrozenDict cannot be changed: {name} stays as it is.")

    def __reduce__(self) -> tuple[type["FrozenDict"], tuple[dict[str, Json]]]:
        return FrozenDict, (dict(self._items),)

    def __deepcopy__(self, memo: object) -> "FrozenDict":
        return self


def freeze(value: Json, path: str = "the value") -> Json:
    """The value with mappings as `FrozenDict` and lists as tuples; it shares nothing with the original.

    :raises TypeError: naming the place, for a value that is not plain JSON.
    :raises ValueError: for NaN and the infinities, which JSON lacks.
    """
    if value is None or isinstance(value, bool | FrozenDict):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{path} is {value}, which JSON cannot hold.")
        return float(value)
    if isinstance(value, Mapping):
        return FrozenDict(value, path)
    if isinstance(value, list | tuple):
        return tuple(freeze(item, f"{path}[{index}]") for index, item in enumerate(value))
    raise TypeError(
        f"{path} is {an(value)}: only text, numbers, booleans, None, lists and mappings can be kept."
    )


def thaw(value: Json) -> Json:
    """A copy in dicts and lists, for `json.dumps` and for callers that want to change it."""
    if isinstance(value, Mapping):
        return {key: thaw(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [thaw(item) for item in value]
    return value


def to_json(value: Json) -> str:
    """The value as JSON text, its keys in their order."""
    return json.dumps(thaw(value), ensure_ascii=False, allow_nan=False)


def _key(key: object, path: str) -> str:
    if not isinstance(key, str):
        raise TypeError(f"{path}[{key!r}]: the key is {an(key)}, but keys in JSON are text.")
    return str.__str__(key)


def utc_now() -> datetime:
    return datetime.now(UTC)


def as_utc(moment: datetime) -> datetime:
    """The same moment in UTC.

    :raises ValueError: for a time without a time zone.
    """
    if moment.utcoffset() is None:
        raise ValueError(
            f"{moment.isoformat()} has no time zone: use an aware time, such as datetime.now(UTC)."
        )
    return moment.astimezone(UTC)


def tuple_of(kind: type[T], items: Iterable[T], name: str) -> tuple[T, ...]:
    """The items as a tuple.

    :raises TypeError: naming the field, for one text or a mapping, or if an item is of another type.
    """
    if isinstance(items, str):
        raise TypeError(f"{name} is one text: give a list of them.")
    if isinstance(items, Mapping):
        raise TypeError(f"{name} is a mapping, of which only the keys would be kept: give a list.")
    values = tuple(items)
    if not all(isinstance(item, kind) for item in values):
        raise TypeError(f"{name} contains something other than {kind.__name__}.")
    return values


def require(kind: type | UnionType, **values: object) -> None:
    """
    :raises TypeError: naming the value that is of another type.
    """
    for name, value in values.items():
        if not isinstance(value, kind):
            type_name = getattr(kind, "__name__", str(kind))
            raise TypeError(f"{name} is {an(value)}, not {with_article(type_name)}.")


def set_fields(record: object, **values: object) -> None:
    """Set fields of a frozen dataclass while it is being created: the frozen form of its arguments."""
    for name, value in values.items():
        object.__setattr__(record, name, value)
