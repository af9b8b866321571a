"""Texts and stored values as far as a card has room for them, with the whole to be opened. No queries."""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any

from sessions_app.desk.pages.formats import formatted, plain
from sessions_app.desk.pages.values import readable
from sessions_app.wording import pretty, shorten

LONGEST_WHOLE = 8_000
LONG = 60
# So many facts of an object with many keys are on the line.
FEW = 6
# Characters of a text that are more than a word, so that it says the same where it stands in another text.
PHRASE = 12


@dataclass(frozen=True, slots=True)
class Excerpt:
    """``line`` is the beginning, on one line. What it leaves out is in ``facts``, the keys and values of an object, or
    else in ``whole``; both are empty where it leaves nothing out.
    """

    line: str = ""
    whole: str = ""
    facts: tuple[tuple[str, str], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.line)

    def __str__(self) -> str:
        return self.line


@dataclass(frozen=True, slots=True)
class Style:
    """How the values of keys are written, and by which titles: of a tool those of its arguments with these names."""

    formats: Mapping[str, str] = field(default_factory=dict)
    titles: Mapping[str, str] = field(default_factory=dict)

    def title(self, key: str) -> str:
        return self.titles.get(key) or key.replace("_", " ")


@dataclass(frozen=True, slots=True)
class _Fact:
    """A key and its ``value`` as they are written, and the value itself; ``formatted``: the style has its format."""

    title: str
    text: str
    value: Any
    formatted: bool

    def is_about(self, values: AbstractSet[str]) -> bool:
        """Whether it is one of the values, or stands in one of them."""
        text = str(self.value)
        is_long = isinstance(self.value, str) and len(text) >= PHRASE
        return text in values or (is_long and any(text in value for value in values))


def of_text(text: str, limit: int, between_lines: str = " ") -> Excerpt:
    one_line = " ".join(between_lines.join(text.strip().splitlines()).split())
    line = shorten(one_line, limit)
    return Excerpt(line, "" if line == one_line else shorten(text.strip(), LONGEST_WHOLE))


def of_value(
    value: Any, limit: int, style: Style | None = None, about: AbstractSet[str] = frozenset()
) -> Excerpt:
    """A stored value: an object as ``status: active, limit: €500.00``, documents by their titles, else its text.

    :param about: The values that matter most. Of an object with many keys the line has a few facts: those of which the
        style has a format, those with such a value, and then the first.
    """
    style = style or Style()
    shown = readable(value)
    if shown.documents:
        titles = shorten(", ".join(f"“{document.title}”" for document in shown.documents), limit)
        contents = "\n\n".join(f"{document.title}\n{document.content}" for document in shown.documents)
        return Excerpt(titles, shorten(contents, LONGEST_WHOLE))
    if shown.plain:
        return of_text(shown.text, limit)
    data = shown.data
    if not isinstance(data, dict | list):
        return Excerpt(plain(data))
    facts = _facts(data, style)
    if not facts:
        rows = _rows(data, style)
        return of_text("\n".join(rows), limit, "; ") if rows else of_text(shown.text, limit)
    few = _few(facts, about)
    # What is long stands last, so that it cuts nothing else off.
    by_length = sorted(few, key=lambda fact: len(fact.text) > LONG)
    short = ", ".join(f"{fact.title}: {fact.text}" for fact in by_length)
    line = shorten(short, limit) or shorten(shown.line, limit)
    is_all = line == short and len(few) == len(facts)
    return Excerpt(line, facts=() if is_all else tuple([(fact.title, fact.text) for fact in facts]))


def _facts(value: Any, style: Style) -> list[_Fact]:
    """The keys and values of an object, in its order; of one that only holds another object, that one's."""
    while isinstance(value, dict) and len(value) == 1 and isinstance(next(iter(value.values())), dict):
        [value] = value.values()
    if not isinstance(value, dict):
        return []
    return [
        _Fact(style.title(key), _text(key, item, style), item, key in style.formats)
        for key, item in value.items()
        if item not in (None, "", [], {})
    ]


def _few(facts: list[_Fact], about: AbstractSet[str]) -> list[_Fact]:
    """At most `FEW`, in their order, of those that fit on a line."""
    on_a_line = [fact for fact in facts if "\n" not in fact.text]
    by_weight = sorted(on_a_line, key=lambda fact: not fact.formatted and not fact.is_about(about))
    first = {id(fact) for fact in by_weight[:FEW]}
    return [fact for fact in on_a_line if id(fact) in first]


def _rows(value: Any, style: Style) -> list[str]:
    """The objects of a list, each in one line; none where one of them does not fit on a line."""
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        return []
    lines = [", ".join(f"{fact.title}: {fact.text}" for fact in _facts(item, style)) for item in value]
    return lines if not any("\n" in line for line in lines) else []


def _text(key: str, value: Any, style: Style) -> str:
    if isinstance(value, dict | list):
        items = value.values() if isinstance(value, dict) else value
        if any(isinstance(item, dict | list) for item in items):
            return pretty(value)
        if isinstance(value, list):
            return ", ".join(_text(key, item, style) for item in value)
        return ", ".join(f"{style.title(name)} {_text(name, item, style)}" for name, item in value.items())
    format = style.formats.get(key, "")
    text = formatted(value, format) if format else ""
    return plain(value) if text in ("", str(value)) else text
