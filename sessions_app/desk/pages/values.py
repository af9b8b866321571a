"""Stored values as a person reads them: documents as documents, text as text, the rest as JSON. No queries.

Stored JSON carries tags (``{"$type": ..., "value": ...}``); this module reads them without building any object.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from agentstate.durable.state.tags import as_plain_data, stand_ins, tagged_values, without_tags
from agentstate.names import TYPE_TAG
from sessions_app.access.errors import Invalid
from sessions_app.access.masking import HIDDEN
from sessions_app.access.typed import read_json
from sessions_app.desk.pages.formats import plain
from sessions_app.wording import count, pretty

# A text, or a value that is none and of which a part is hidden.
_BARE_HIDDEN = re.compile(rf'"(?:[^"\\]|\\.)*+"|[^\s\[\]{{}}:,"]*{HIDDEN}[^\s\[\]{{}}:,"]*')
# Characters of a value that are shown on one line at most.
LINE = 400
TITLE_KEYS = ("title", "name", "file_name", "source", "file_path", "url")


@dataclass(frozen=True, slots=True)
class RetrievedDocument:
    """``score`` is the retriever's own measure, None if it gave none."""

    title: str
    content: str
    score: float | None


@dataclass(frozen=True)
class ReadableValue:
    """A value with the documents in it. Its texts are made when they are asked for: many values are shown by a few
    facts only.

    data: the value without tags, in which texts that are JSON documents are these documents.
    stands_for: the types that could not be stored, of which the value has the text or the plain data.
    has_json_text: it is a text that is a JSON document, or has such texts in it.
    shorter: the data of `fields_set`; None if the value has no documents.
    """

    data: Any
    documents: list[RetrievedDocument]
    stands_for: tuple[str, ...] = ()
    has_json_text: bool = False
    shorter: Any = None

    @property
    def plain(self) -> bool:
        """Whether ``text`` is the stored text itself, not JSON."""
        return isinstance(self.data, str)

    @cached_property
    def text(self) -> str:
        return self.data if isinstance(self.data, str) else pretty(self.data)

    @cached_property
    def fields_set(self) -> str:
        """The JSON without the fields of documents that are not set, and with the length of an embedding for its
        numbers; "" where that leaves nothing out.
        """
        leaves_nothing_out = self.plain or self.shorter is None or self.shorter == self.data
        return "" if leaves_nothing_out else pretty(self.shorter)

    @property
    def line(self) -> str:
        """Its beginning on one line: the facts of an object (``status active, limit 500``), or the text."""
        return _one_line(_facts(self.data) or self.text)

    @property
    def brief(self) -> bool:
        return len(self.text) <= 160 and "\n" not in self.text


def readable(value: Any, *, as_stored: bool = False) -> ReadableValue:
    """Texts that are JSON documents are read as such, unless it is to be ``as_stored``."""
    # Of most values there is nothing to be taken out, and each of the four goes through all of the value.
    is_tagged = next(tagged_values(value), None) is not None
    documents = [_document(data) for data in _documents(value)] if is_tagged else []
    shorter = without_tags(_with_fields_set(value)) if documents else None
    types = tuple(stand_ins(value)) if is_tagged else ()
    stored = without_tags(value) if is_tagged else value
    data = stored if as_stored else _with_documents(stored)
    has_json_text = not isinstance(data, str) and data != stored
    return ReadableValue(data, documents, types, has_json_text, shorter)


def readable_arguments(arguments: Any) -> ReadableValue:
    """The arguments of a call: plain JSON as the model wrote it, in which a key ``$type`` is a key like others."""
    return readable(as_plain_data(arguments))


def _with_documents(value: Any, texts: int = 2) -> Any:
    """A copy in which each text that is a JSON document is that document, and so in it, ``texts`` times at most."""
    if isinstance(value, dict):
        return {key: _with_documents(item, texts) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_documents(item, texts) for item in value]
    document = json_document(value) if isinstance(value, str) and texts else None
    return value if document is None else _with_documents(document, texts - 1)


def json_document(text: str) -> Any:
    """The object or list that a text is the JSON of; None for any other text, and for one with a name twice.

    The text is masked: where a number in it is hidden, what stands there is no JSON, and is read as a text.
    """
    if not text.lstrip().startswith(("{", "[")):
        return None
    text = _BARE_HIDDEN.sub(_as_string, text) if HIDDEN in text else text
    try:
        read_json(text)  # which holds the limits
        return json.loads(text, object_pairs_hook=_object)
    except (Invalid, ValueError):
        return None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise ValueError("a name occurs twice")
    return value


def _as_string(token: re.Match[str]) -> str:
    return token.group() if token.group().startswith('"') else json.dumps(token.group(), ensure_ascii=False)


def _with_fields_set(value: Any) -> Any:
    """A copy in which each document has only the fields that are set."""
    if isinstance(value, list):
        return [_with_fields_set(item) for item in value]
    if not isinstance(value, dict):
        return value
    if not _is_document(value):
        return {key: _with_fields_set(item) for key, item in value.items()}
    fields = {key: item for key, item in value["value"].items() if item not in (None, {}, [])}
    if isinstance(numbers := fields.get("embedding"), list):
        fields["embedding"] = count(len(numbers), "number")
    return {**value, "value": fields}


def _facts(value: Any) -> str:
    """The values of an object that are no lists or objects themselves, with their names."""
    if not isinstance(value, dict):
        return ""
    single = {
        key: item
        for key, item in value.items()
        if not isinstance(item, dict | list) and item not in (None, "")
    }
    if not single and len(value) == 1:
        return _facts(*value.values())
    return ", ".join(f"{key.replace('_', ' ')} {plain(item)}" for key, item in single.items())


def _one_line(text: str) -> str:
    return " ".join(text[: 2 * LINE].split())[:LINE]


def _documents(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, list):
        for item in value:
            yield from _documents(item)
    elif isinstance(value, dict):
        if _is_document(value):
            yield value["value"]
        else:
            for item in value.values():
                yield from _documents(item)


def _is_document(value: dict[str, Any]) -> bool:
    return value.get(TYPE_TAG) == "document" and isinstance(value.get("value"), dict)


def _document(data: dict[str, Any]) -> RetrievedDocument:
    meta = without_tags(data.get("meta") or {})
    content = data.get("content") or ""
    title = (
        next((str(meta[key]) for key in TITLE_KEYS if meta.get(key)), "")
        or content[:60]
        or str(data.get("id", ""))[:12]
    )
    score = data.get("score")
    return RetrievedDocument(title, content, score if isinstance(score, int | float) else None)
