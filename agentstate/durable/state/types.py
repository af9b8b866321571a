"""The closed list of types, beyond plain JSON, of which stored values come back, and what stands in for all others.

Nothing in stored data names code: a tag chooses an entry of these tables. The name of a type that is not among them is
only told to people.
"""

from base64 import b64decode, b64encode
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from numbers import Integral, Rational, Real
from pathlib import Path, PosixPath, WindowsPath
from typing import Any, SupportsIndex
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

Json = Any


def _timedelta(parts: Json) -> timedelta:
    return timedelta(*parts) if isinstance(parts, list) else timedelta(seconds=parts)


def _base64(value: bytes | bytearray) -> str:
    return b64encode(value).decode("ascii")


TAGGED: dict[str, tuple[type, Callable[[Any], Json], Callable[[Json], Any]]] = {
    "datetime": (datetime, datetime.isoformat, datetime.fromisoformat),
    "date": (date, date.isoformat, date.fromisoformat),
    "time": (time, time.isoformat, time.fromisoformat),
    "timedelta": (timedelta, lambda value: [value.days, value.seconds, value.microseconds], _timedelta),
    "decimal": (Decimal, str, Decimal),
    "uuid": (UUID, str, UUID),
    "bytes": (bytes, _base64, b64decode),
    "bytearray": (bytearray, _base64, lambda text: bytearray(b64decode(text))),
    "path": (Path, str, Path),
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
TAG_OF = {kind: tag for tag, (kind, _, _) in TAGGED.items()} | {PosixPath: "path", WindowsPath: "path"}
NESTED = {tag for tag, (kind, _, _) in TAGGED.items() if hasattr(kind, "from_dict")}
# Their values are those of a dict or list, encoded as such.
COLLECTIONS: dict[str, type] = {"ordered_dict": OrderedDict, "counter": Counter, "deque": deque}
COLLECTION_TAG = {kind: tag for tag, kind in COLLECTIONS.items()}
# What a defaultdict may make its missing values with.
FACTORIES: dict[str, Callable[[], Any]] = {
    kind.__name__: kind for kind in (bool, dict, float, int, list, set, str, tuple)
}


class OwnText(str):
    """A text that is no other object's, so that it is known by its identity. It is stored as any text."""


class StandIn(str):
    """The text of a value that could not be stored, or of a str of another type, in a run that continues without it.

    Whatever a str does not have is refused with an error that says so, instead of one that speaks of a str.
    """

    of: str

    def __new__(cls, text: str, of: str) -> "StandIn":
        stand_in = super().__new__(cls, text)
        stand_in.of = of
        return stand_in

    def __reduce__(self) -> tuple[Any, ...]:
        return StandIn, (str.__str__(self), self.of)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"There is no {name!r} here: {self._why()}", name=name, obj=self)

    def __getitem__(self, key: SupportsIndex | slice) -> str:
        if isinstance(key, str):
            raise TypeError(f"There is no {key!r} here: {self._why()}")
        return super().__getitem__(key)

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise TypeError(f"This cannot be called: {self._why()}")

    def _why(self) -> str:
        return (
            f"this is only the text of a {self.of}, which could not be stored, and the run that had it has ended. Make "
            "it again, or have plain data stored in its place."
        )


def stand_in(value: Json, of: str) -> Any:
    """What a run that continues has in place of a value of the type `of`: plain data, or its text."""
    return StandIn(value, of) if isinstance(value, str) else value


def as_base(value: Any) -> Any:
    """The content of an instance of a subclass, or a number, as the plain type itself; None where it is no such value.

    By the methods of the plain type, since a subclass may have changed its own.
    """
    match value:
        case dict():
            return dict(dict.items(value))
        case deque():
            return list(value)
        case list():
            return list.__getitem__(value, slice(None))
        case tuple():
            return tuple.__getitem__(value, slice(None))
        case set():
            return set(set.__iter__(value))
        case frozenset():
            return frozenset(frozenset.__iter__(value))
        case int():
            return int.__index__(value)
        case float():
            return float.__float__(value)
        case bytes():
            return bytes.__getitem__(value, slice(None))
        case datetime():
            return _exact(value, datetime.fromisoformat, datetime.isoformat)
    return as_number(value)


def as_number(value: Any) -> int | float | None:
    """A number or truth value of another library, such as numpy, as Python's own; None for all others.

    As text it would be of no use to the next tool, and a false one would count as true. A float may not be equal to a
    fraction. To numpy a time span is an integer: without its unit it would be another one.
    """
    try:
        kind = getattr(getattr(value, "dtype", None), "kind", "")
        if isinstance(value, Integral) and kind != "m":
            return int(value)
        if isinstance(value, Real) and not isinstance(value, Rational):
            return float(value)
        if kind == "b" and value.ndim == 0:
            return bool(value)
    except Exception:  # noqa: S110 - a value's own code may fail in any way; it still has a text
        pass
    return None


def _exact(value: Any, read: Callable[[str], Any], written: Callable[[Any], str]) -> Any:
    try:
        return read(written(value))
    except Exception:  # a subclass may stand for what the plain type cannot, such as pandas' NaT
        return None


def name_of(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"
