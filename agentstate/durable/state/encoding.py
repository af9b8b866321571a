"""Python values to plain JSON and back, by a closed list of types.

Stored data never names code: a value that is not plain JSON carries a tag of `agentstate.durable.state.types`, and
nothing else is ever built from it. Every database returns an encoded value unchanged: its text has no NUL characters
and no lone surrogates, and it has no number that PostgreSQL's jsonb would change (1e+23 comes back as an integer, -0.0
as 0.0).
"""

from collections import defaultdict, deque
from collections.abc import Mapping
from typing import Any

from agentstate.articles import with_article
from agentstate.durable.state.tags import as_stored_float, in_stored_order
from agentstate.durable.state.types import (
    COLLECTION_TAG,
    COLLECTIONS,
    FACTORIES,
    NESTED,
    TAG_OF,
    TAGGED,
    OwnText,
    StandIn,
    as_base,
    as_number,
    name_of,
    stand_in,
)
from agentstate.names import OUTPUTS_TAG, STAND_IN_TAG, TYPE_TAG

Json = Any
MAX_DEPTH = 100
_PLAIN = frozenset({str, int, float, bool, type(None)})
_STRINGS = frozenset({str})
# By default Python neither writes nor reads longer integers as decimal text.
MAX_BITS = 13_000


class NotStorable(TypeError):
    """A value that cannot be stored; `path` says where it is."""

    def __init__(self, path: str, value: object, why: str = "", cure: str = "") -> None:
        self.path = path
        what = f"the class {value.__qualname__}" if isinstance(value, type) else with_article(name_of(value))
        if not why and not cure:
            cure = (
                "Keep text, numbers, booleans, lists, dicts, dates, Decimal, UUID, bytes, Document or ChatMessage "
                "there."
            )
        super().__init__(f"{path} holds {what}{why and f' {why}'}, which cannot be stored. {cure}".rstrip())


def clean_text(text: str) -> str:
    """The text without what databases refuse: NUL characters and lone surrogates become U+FFFD."""
    if "\x00" in text:
        text = text.replace("\x00", "\ufffd")
    if text.isascii():
        return text
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        # A pair of surrogates is one character, which UTF-16 joins.
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def encode(value: Any, path: str = "the value") -> Json:
    """The value as plain JSON. What is of a subclass of a plain type is stored as that, with the name of its own.

    The order of keys is kept, which a database may change: a prompt or a tool may show the value as text.

    :raises NotStorable: naming the place, for a type that is not on the list.
    """
    return _Encoder(ordered=True).encode(value, path)


def encode_marked(value: Any) -> tuple[Json, str]:
    """Like `encode`, and the name of the first type in the value that cannot be stored; "" if there is none.

    In the place of such a value stands its text or its plain data, with the name of its type.
    """
    encoder = _Encoder(texts=True, ordered=True)
    return encoder.encode(value, "the value"), encoder.marked_type


def encode_lossy(value: Any) -> tuple[Json, bool]:
    """The value as plain JSON, and whether anything of it was lost: what cannot be stored is stored as its text."""
    if type(value) is dict and is_flat(value):
        return {**value}, False
    encoder = _Encoder(texts=True, marks=False)
    return encoder.encode(value, "the result"), encoder.lost


def encode_result(value: Any) -> tuple[Json, bool]:
    """Like `encode_lossy`, and the order of keys is kept: the model sees the result as text."""
    encoder = _Encoder(texts=True, marks=False, ordered=True)
    return encoder.encode(value, "the result"), encoder.lost


def lost_type(value: Any) -> str:
    """The name of the first type in a result that cannot be stored as it is; "" if there is none.

    `CHANGED_TEXT` for a text, or a key, of which a character was replaced.
    """
    encoder = _Encoder(texts=True, marks=False, ordered=True)
    encoder.encode(value, "the result")
    return encoder.lost_type.removeprefix("builtins.")


def decode(data: Json) -> Any:
    """The value that was encoded.

    :raises ValueError: for a tag that is not on the list.
    """
    # Most of the data are plain values in lists and dicts: a call for each of them would cost more than all else.
    if isinstance(data, list):
        return [item if type(item) in _PLAIN else decode(item) for item in data]
    if not isinstance(data, dict):
        return data
    if TYPE_TAG not in data:
        values = dict(data)
        for key, item in data.items():
            if type(item) not in _PLAIN:
                values[key] = decode(item)
        return values
    tag, value = data[TYPE_TAG], data["value"]
    if tag == "float":
        return float(value)
    if tag == "int":
        return int(value, 16)
    if tag == OUTPUTS_TAG:
        return decode(value)
    if tag == STAND_IN_TAG:
        return stand_in(decode(value), data["of"])
    if tag in COLLECTIONS:
        return COLLECTIONS[tag](decode(value))
    if tag == "defaultdict":
        return defaultdict(FACTORIES.get(data["of"]), decode(value))
    if tag == "ordered":
        return {key: decode(value[key]) for key in data["keys"]}
    if tag == "dict":
        return {decode(key): decode(item) for key, item in value}
    if tag == "tuple":
        return tuple(decode(item) for item in value)
    if tag == "set":
        return {decode(item) for item in value}
    if tag == "frozenset":
        return frozenset(decode(item) for item in value)
    if tag not in TAGGED:
        raise ValueError(
            f"Stored data has the unknown type {tag!r}: it was written by a newer version, or by hand."
        )
    return TAGGED[tag][2](decode(value) if tag in NESTED else value)


class _Encoder:
    """
    :param texts: What cannot be stored is stored as its text, instead of being refused.
    :param marks: What is stored as something else is marked with the name of its type, of which it comes back as a
        `StandIn` or as plain data. Without marks, as a result is stored, nothing but `lost` tells.
    :param ordered: The order of the keys of each dict is stored where PostgreSQL's jsonb would change it.
    """

    def __init__(self, *, texts: bool = False, marks: bool = True, ordered: bool = False) -> None:
        self.texts = texts
        self.marks = marks
        self.ordered = ordered
        self.lost = False
        self.lost_type = ""
        self.marked_type = ""
        self._inside: set[int] = set()

    def encode(self, value: Any, path: str) -> Json:
        if value is None or value is True or value is False:
            return value
        if type(value) is int:
            return value if value.bit_length() < MAX_BITS else self._huge(value)
        if isinstance(value, str):
            # Not str(value): a subclass, such as an Enum, may return something else.
            text = clean_text(str.__str__(value))
            if type(value) is str or type(value) is OwnText:
                if text != value:
                    self._lose(value)
                return text
            return self._instead(value, text)
        if type(value) is float:
            return as_stored_float(value)
        if id(value) in self._inside:
            return self._text(value, path, "that contains itself")
        if len(self._inside) >= MAX_DEPTH:
            return self._text(value, path, f"{MAX_DEPTH} levels deep")
        self._inside.add(id(value))
        try:
            return self._whole(value, path)
        finally:
            self._inside.discard(id(value))

    def _whole(self, value: Any, path: str) -> Json:
        if type(value) is list:
            return [
                item if _is_stored_as_it_is(item) else self.encode(item, f"{path}[{index}]")
                for index, item in enumerate(value)
            ]
        if type(value) is dict:
            return self._mapping(value, path)
        if type(value) is tuple:
            items = [self.encode(item, f"{path}[{index}]") for index, item in enumerate(value)]
            return {TYPE_TAG: "tuple", "value": items}
        if type(value) in (set, frozenset):
            members = [self._hashable(item, path) for item in sorted(value, key=_text_of)]
            return {TYPE_TAG: type(value).__name__, "value": members}
        tag = TAG_OF.get(type(value))
        if tag is not None:
            data = TAGGED[tag][1](value)
            if tag in NESTED:
                data = self._fields(data, path)
            return {TYPE_TAG: tag, "value": data}
        if type(value) in COLLECTION_TAG and getattr(value, "maxlen", None) is None:
            content = self._content(list(value) if isinstance(value, deque) else dict(value), path)
            return {TYPE_TAG: COLLECTION_TAG[type(value)], "value": content}
        if (
            type(value) is defaultdict
            and FACTORIES.get(name := _name_of_factory(value)) is value.default_factory
        ):
            return {TYPE_TAG: "defaultdict", "value": self._content(dict(value), path), "of": name}
        if not self.marks:
            # What Haystack shows the model of such a value: its to_dict() where it has one, else its text.
            as_dict = getattr(value, "to_dict", None)
            if callable(as_dict) and not isinstance(value, type):
                try:
                    data = self.encode(as_dict(), path)
                except Exception:  # noqa: S110 - a value's own to_dict may fail in any way; it still has a text
                    pass
                else:
                    self._lose(value)
                    return data
        plain = as_base(value)
        if plain is not None:
            return self._instead(value, self._content(plain, path))
        return self._text(value, path)

    def _fields(self, fields: dict[str, Any], path: str) -> Json:
        """The fields of an object of Haystack, which is built from them by their names: in the State only the keys of
        its `meta` may have an order that matters.
        """
        before, data = self.ordered, {}
        for name, item in fields.items():
            self.ordered = before and (name == "meta" or not self.marks)
            data[name] = self.encode(item, f"{path}.{name}")
        self.ordered = before
        return data

    def _content(self, value: Any, path: str) -> Json:
        """The content of a value of another type. The keys of a dict may have an order that matters."""
        if type(value) is not dict:
            return self.encode(value, path)
        before, self.ordered = self.ordered, True
        data = self._mapping(value, path)
        self.ordered = before
        return data

    def _huge(self, value: int) -> Json:
        if self.marks:
            return {TYPE_TAG: "int", "value": hex(value)}
        self._lose(value)  # it cannot be shown to the model as a number
        return hex(value)

    def _mapping(self, value: Mapping[Any, Any], path: str) -> Json:
        if TYPE_TAG not in value and _STRINGS.issuperset(map(type, value)):
            data = {
                clean_text(key): item if _is_stored_as_it_is(item) else self.encode(item, f"{path}[{key!r}]")
                for key, item in value.items()
            }
            if data.keys() != value.keys():
                self._lose("")  # a text in which a character was replaced
            return in_stored_order(data) if self.ordered else data
        pairs = [
            [self._hashable(key, path), self.encode(item, f"{path}[{_text_of(key)}]")]
            for key, item in value.items()
        ]
        return {TYPE_TAG: "dict", "value": pairs}

    def _hashable(self, value: Any, path: str) -> Json:
        """A key of a dict or a member of a set: its decoded value has to be hashable, too."""
        if isinstance(value, tuple | frozenset) or type(value) in TAG_OF or _is_plain(value):
            data = self.encode(value, path)
            try:
                hash(decode(data))
            except TypeError:
                return self._text(value, path)
            return data
        return self._text(value, path)

    def _text(self, value: Any, path: str, why: str = "") -> Json:
        if not self.texts:
            raise NotStorable(path, value, why)
        return self._instead(value, clean_text(_text_of(value)))

    def _instead(self, value: Any, data: Json) -> Json:
        """The data, stored in the place of a value of another type."""
        of = value.of if isinstance(value, StandIn) else name_of(value)
        self.lost, self.lost_type = True, self.lost_type or of
        if not isinstance(value, StandIn):
            self.marked_type = self.marked_type or of
        return {TYPE_TAG: STAND_IN_TAG, "value": data, "of": of} if self.marks else data

    def _lose(self, value: Any) -> None:
        self.lost, self.lost_type = True, self.lost_type or name_of(value)


def _name_of_factory(value: defaultdict[Any, Any]) -> str:
    return getattr(value.default_factory, "__name__", "")


def _is_stored_as_it_is(value: Any) -> bool:
    """Whether this is a plain value that needs no encoding: a quick test, which most values of a step pass."""
    kind = type(value)
    if kind is str:
        return bool(value.isascii() and "\x00" not in value)
    if kind is int:
        return bool(value.bit_length() < MAX_BITS)
    return value is None or kind is bool


def is_flat(value: dict[Any, Any]) -> bool:
    """Whether the dict holds plain values only, as the arguments of most calls do, so that nothing of it is encoded."""
    for key, item in value.items():
        if type(key) is not str or not _is_stored_as_it_is(key) or not _is_stored_as_it_is(item):
            return False
    return TYPE_TAG not in value


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float) or as_number(value) is not None


def _text_of(value: Any) -> str:
    try:
        return repr(value) if isinstance(value, str) else str(value)
    except Exception:  # a value's own code may fail in any way, or recurse without end
        return f"<{name_of(value)}>"
