"""Python values to plain JSON and back, by a closed list of types.

Stored data never names code: a value that is not plain JSON carries a tag from `_TAGGED`, and nothing else is ever
built from it. Every database returns an encoded value unchanged: its text has no NUL characters and no lone surrogates,
and it has no number that PostgreSQL's jsonb would change (1e+23 comes back as an integer, -0.0 as 0.0).
"""

import dataclasses
import math
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from haystack.dataclasses import (
    ByteStream,
    ChatMessage,
    Document,
    ExtractedAnswer,
    FileContent,
    GeneratedAnswer,
    ImageContent,
    ReasoningContent,
    SparseEmbedding,
    TextContent,
    ToolCall,
    ToolCallResult,
)

from agentstate.names import OUTPUTS_TAG, TYPE_TAG

Json = Any
MAX_DEPTH = 100
_PLAIN = frozenset({str, int, float, bool, type(None)})
_STRINGS = frozenset({str})
# By default Python neither writes nor reads longer integers as decimal text.
MAX_BITS = 13_000


def _timedelta(parts: Json) -> timedelta:
    return timedelta(*parts) if isinstance(parts, list) else timedelta(seconds=parts)


_TAGGED: dict[str, tuple[type, Callable[[Any], Json], Callable[[Json], Any]]] = {
    "datetime": (datetime, datetime.isoformat, datetime.fromisoformat),
    "date": (date, date.isoformat, date.fromisoformat),
    "timedelta": (timedelta, lambda value: [value.days, value.seconds, value.microseconds], _timedelta),
    "decimal": (Decimal, str, Decimal),
    "uuid": (UUID, str, UUID),
    "bytes": (bytes, lambda value: b64encode(value).decode("ascii"), b64decode),
    "document": (Document, lambda value: value.to_dict(flatten=False), Document.from_dict),
    "message": (ChatMessage, ChatMessage.to_dict, ChatMessage.from_dict),
    "bytestream": (ByteStream, ByteStream.to_dict, ByteStream.from_dict),
    "answer": (GeneratedAnswer, GeneratedAnswer.to_dict, GeneratedAnswer.from_dict),
    "extracted_answer": (ExtractedAnswer, ExtractedAnswer.to_dict, ExtractedAnswer.from_dict),
    "text_content": (TextContent, TextContent.to_dict, TextContent.from_dict),
    "image_content": (ImageContent, ImageContent.to_dict, ImageContent.from_dict),
    "file_content": (FileContent, FileContent.to_dict, FileContent.from_dict),
    "reasoning": (ReasoningContent, ReasoningContent.to_dict, ReasoningContent.from_dict),
    "sparse_embedding": (SparseEmbedding, SparseEmbedding.to_dict, SparseEmbedding.from_dict),
    "tool_call": (ToolCall, ToolCall.to_dict, ToolCall.from_dict),
    "tool_call_result": (ToolCallResult, ToolCallResult.to_dict, ToolCallResult.from_dict),
}
_TAG_OF = {kind: tag for tag, (kind, _, _) in _TAGGED.items()}
_NESTED = {tag for tag, (kind, _, _) in _TAGGED.items() if hasattr(kind, "from_dict")}


class NotStorable(TypeError):
    """A value that cannot be stored; `path` says where it is."""

    def __init__(self, path: str, value: object, why: str = "") -> None:
        self.path = path
        what = f"{path} holds a {type(value).__module__}.{type(value).__qualname__}"
        super().__init__(
            f"{what} {why}, which cannot be stored."
            if why
            else f"{what}, which cannot be stored. Keep text, numbers, booleans, lists, dicts, dates, Decimal, UUID, "
            "bytes, Document or ChatMessage there."
        )


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
    """The value as plain JSON.

    :raises NotStorable: naming the place, for a type that is not on the list.
    """
    return _Encoder(lossy=False).encode(value, path)


def encode_lossy(value: Any) -> tuple[Json, bool]:
    """The value as plain JSON, and whether anything of it was lost: what cannot be stored is stored as its text."""
    encoder = _Encoder(lossy=True)
    return encoder.encode(value, "the result"), encoder.lost


def encode_result(value: Any) -> tuple[Json, bool]:
    """Like `encode_lossy`, and preserves the order of keys, which a database may change: the model sees it as text."""
    encoder = _Encoder(lossy=True, ordered=True)
    return encoder.encode(value, "the result"), encoder.lost


def lost_type(value: Any) -> str:
    """The name of the first type in a result that cannot be stored as it is; "" if there is none."""
    encoder = _Encoder(lossy=True, ordered=True)
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
    if tag not in _TAGGED:
        raise ValueError(
            f"Stored data has the unknown type {tag!r}: it was written by a newer version, or by hand."
        )
    return _TAGGED[tag][2](decode(value) if tag in _NESTED else value)


class _Encoder:
    def __init__(self, *, lossy: bool, ordered: bool = False) -> None:
        self.lossy = lossy
        self.ordered = ordered
        self.lost = False
        self.lost_type = ""
        self._inside: set[int] = set()

    def encode(self, value: Any, path: str) -> Json:
        if value is None or value is True or value is False:
            return value
        if type(value) is int:
            return value if value.bit_length() < MAX_BITS else self._huge(value)
        if isinstance(value, str):
            # Not str(value): a subclass, such as an Enum, may return something else.
            text = clean_text(str.__str__(value))
            if text != value:
                self._lose(value)
            return text
        if type(value) is float:
            return value if _is_unchanged_by_databases(value) else {TYPE_TAG: "float", "value": repr(value)}
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
        tag = _TAG_OF.get(type(value))
        if tag is not None:
            data = _TAGGED[tag][1](value)
            if tag in _NESTED:
                data = {key: self.encode(item, f"{path}.{key}") for key, item in data.items()}
            return {TYPE_TAG: tag, "value": data}
        if self.lossy:
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
        return self._text(value, path)

    def _huge(self, value: int) -> Json:
        if not self.lossy:
            return {TYPE_TAG: "int", "value": hex(value)}
        self._lose(value)  # it cannot be shown to the model as a number
        return hex(value)

    def _mapping(self, value: Mapping[Any, Any], path: str) -> Json:
        if TYPE_TAG not in value and _STRINGS.issuperset(map(type, value)):
            data = {
                clean_text(key): item if _is_stored_as_it_is(item) else self.encode(item, f"{path}[{key!r}]")
                for key, item in value.items()
            }
            if self.ordered and list(data) != sorted(data, key=_as_postgres_orders):
                return {TYPE_TAG: "ordered", "keys": list(data), "value": data}
            return data
        pairs = [
            [self._hashable(key, path), self.encode(item, f"{path}[{_text_of(key)}]")]
            for key, item in value.items()
        ]
        return {TYPE_TAG: "dict", "value": pairs}

    def _hashable(self, value: Any, path: str) -> Json:
        """A key of a dict or a member of a set: its decoded value has to be hashable, too."""
        if isinstance(value, tuple | frozenset) or type(value) in _TAG_OF or _is_plain(value):
            data = self.encode(value, path)
            try:
                hash(decode(data))
            except TypeError:
                return self._text(value, path)
            return data
        return self._text(value, path)

    def _text(self, value: Any, path: str, why: str = "") -> Json:
        if not self.lossy:
            raise NotStorable(path, value, why)
        self._lose(value)
        return clean_text(_text_of(value))

    def _lose(self, value: Any) -> None:
        self.lost = True
        self.lost_type = self.lost_type or f"{type(value).__module__}.{type(value).__qualname__}"


def _is_stored_as_it_is(value: Any) -> bool:
    """Whether this is a plain value that needs no encoding: a quick test, which most values of a step pass."""
    kind = type(value)
    if kind is str:
        return bool(value.isascii() and "\x00" not in value)
    if kind is int:
        return bool(value.bit_length() < MAX_BITS)
    return value is None or kind is bool


def _is_unchanged_by_databases(value: float) -> bool:
    """Whether every database returns the number unchanged, as plain JSON."""
    return -1e16 < value < 1e16 and (value != 0 or math.copysign(1, value) > 0)


def _as_postgres_orders(key: str) -> tuple[int, bytes]:
    data = key.encode()
    return len(data), data


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float)


def _text_of(value: Any) -> str:
    try:
        return repr(value) if isinstance(value, str) else str(value)
    except Exception:  # a value's own code may fail in any way, or recurse without end
        return f"<{type(value).__module__}.{type(value).__qualname__}>"


def stable(value: Any) -> bool:
    """Whether the value does not change in place, so that the same object means the same content."""
    return (
        value is None
        or isinstance(value, str | int | float | bool | bytes | Document | ChatMessage | datetime)
        or (
            dataclasses.is_dataclass(value)
            and not isinstance(value, type)
            and value.__dataclass_params__.frozen  # type: ignore[attr-defined]
        )
    )
