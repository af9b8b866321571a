"""Stored values as a person reads them: documents as documents, text as text, the rest as JSON.

Stored JSON carries tags (``{"$type": ..., "value": ...}``); this room reads them without building anything.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from agentstate.names import TYPE_TAG

TITLE_KEYS = ("title", "name", "file_name", "source", "file_path", "url")


@dataclass(frozen=True, slots=True)
class FoundDocument:
    """One retrieved document. ``score`` is the retriever's own measure, if it gave one."""

    title: str
    content: str
    score: float | None
    meta: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Shown:
    """A value ready to be shown: its documents, or else its text. ``plain`` says that the text is prose, not JSON."""

    text: str
    plain: bool
    documents: list[FoundDocument]

    @property
    def brief(self) -> bool:
        return len(self.text) <= 160 and "\n" not in self.text


def show(value: Any) -> Shown:
    documents = [_document(found) for found in _documents(value)]
    value = untagged(value)
    if isinstance(value, str):
        return Shown(value, True, documents)
    return Shown(json.dumps(value, ensure_ascii=False, indent=2), False, documents)


def untagged(value: Any) -> Any:
    """The value without its type tags, as plain JSON for reading."""
    if isinstance(value, list):
        return [untagged(item) for item in value]
    if not isinstance(value, dict):
        return value
    if TYPE_TAG in value:
        return untagged(value.get("value"))
    return {key: untagged(item) for key, item in value.items()}


def _documents(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, list):
        for item in value:
            yield from _documents(item)
    elif isinstance(value, dict):
        inner = value.get("value")
        if value.get(TYPE_TAG) == "document" and isinstance(inner, dict):
            yield inner
        else:
            for item in value.values():
                yield from _documents(item)


def _document(data: dict[str, Any]) -> FoundDocument:
    meta = untagged(data.get("meta") or {})
    content = data.get("content") or ""
    title = (
        next((str(meta[key]) for key in TITLE_KEYS if meta.get(key)), "")
        or content[:60]
        or str(data.get("id", ""))[:12]
    )
    score = data.get("score")
    return FoundDocument(title, content, score if isinstance(score, int | float) else None, meta)
