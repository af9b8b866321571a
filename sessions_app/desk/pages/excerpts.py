"""Texts and stored values as far as a card has room for them, with the whole to be opened. No queries."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sessions_app.desk.pages.formats import formatted
from sessions_app.desk.pages.values import readable
from sessions_app.wording import shorten

LONGEST_WHOLE = 8_000
LONG = 60


@dataclass(frozen=True, slots=True)
class Excerpt:
    """``line`` is the beginning, on one line. What it leaves out is in ``facts``, the keys and values of an object, or
    else in ``whole``; both are empty where it leaves nothing out.
    """

    line: str = ""
    whole: str = ""
    facts: list[tuple[str, str]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.line)

    def __str__(self) -> str:
        return self.line


def of_text(text: str, limit: int) -> Excerpt:
    one_line = " ".join(text.split())
    line = shorten(one_line, limit)
    return Excerpt(line, "" if line == one_line else shorten(text.strip(), LONGEST_WHOLE))


def of_value(value: Any, limit: int, formats: Mapping[str, str] | None = None) -> Excerpt:
    """A stored value: an object as ``status: active, limit: €500.00``, documents by their titles, else its text.

    :param formats: How the values of keys with these names are written.
    """
    shown = readable(value)
    if shown.documents:
        titles = shorten(", ".join(f"“{document.title}”" for document in shown.documents), limit)
        contents = "\n\n".join(f"{document.title}\n{document.content}" for document in shown.documents)
        return Excerpt(titles, shorten(contents, LONGEST_WHOLE))
    if shown.plain:
        return of_text(shown.text, limit)
    facts = _facts(json.loads(shown.text), formats or {})
    if not facts:
        return of_text(shown.text, limit)
    # What is long stands last, so that it cuts nothing else off.
    by_length = sorted(facts, key=lambda fact: len(fact[1]) > LONG)
    short = ", ".join(f"{key}: {text}" for key, text in by_length if "\n" not in text)
    line = shorten(short, limit) or shorten(shown.line, limit)
    is_all = line == short and all("\n" not in text for _, text in facts)
    return Excerpt(line, facts=[] if is_all else facts)


def _facts(value: Any, formats: Mapping[str, str]) -> list[tuple[str, str]]:
    """The keys and values of an object, in its order; of one that only holds another object, that one's."""
    while isinstance(value, dict) and len(value) == 1 and isinstance(next(iter(value.values())), dict):
        [value] = value.values()
    if not isinstance(value, dict):
        return []
    return [
        (key.replace("_", " "), _text(item, formats.get(key, "")))
        for key, item in value.items()
        if item not in (None, "", [], {})
    ]


def _text(value: Any, format: str) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict | list):
        flat = isinstance(value, list) and not any(isinstance(item, dict | list) for item in value)
        return ", ".join(map(str, value)) if flat else json.dumps(value, ensure_ascii=False, indent=2)
    return formatted(value, format) if format else str(value)
