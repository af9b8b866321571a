"""What matches the configured regular expressions, in time linear in the length of the text.

The patterns are those of RE2, which has no look-around and no backreferences and searches in linear time. Letters,
digits and white space (``\\w``, ``\\d``, ``\\s``) are those of Unicode; ``\\b`` knows only those of ASCII.

One search is linear, but to find all matches need not be: each search may read on to the end of the text. So after the
first 50 matches only those of up to 4,096 bytes are found; and where a text has so many matches that this too takes
more than a fixed number of steps for each character, all that follows is hidden.
"""

import re
from collections.abc import Iterator
from typing import Any

import re2

from sessions_app.access.hiding import Span

_UNLIMITED_MATCHES = 50
_LONGEST_MATCH = 4_096
_STEPS_PER_BYTE = 1_000
_STEPS_PER_TEXT = 10_000_000
_CLASSES = {"w": r"\pL\pM\pN_", "d": r"\p{Nd}", "s": r"\s\x0b\x{85}\pZ"}
_TOKEN = re.compile(r"\\.|\[:\^?\w+:\]|\[\^?\]?|.", re.DOTALL)
_SURROGATE = re.compile("[\ud800-\udfff]")


class PatternError(ValueError):
    """A pattern that cannot be used. The message says which and why."""


class HiddenPattern:
    """A pattern of what is hidden.

    :raises PatternError: for a pattern that RE2 refuses.
    """

    def __init__(self, pattern: str) -> None:
        options = re2.Options()
        options.log_errors = False
        options.max_mem = 64 << 20
        try:
            self._pattern: Any = re2.compile(_with_unicode_classes(pattern), options)
        except re2.error as error:
            reason = error.args[0] if error.args else ""
            reason = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
            raise PatternError(
                f"{pattern!r} is not a valid regular expression: {reason}. Patterns are those of RE2, which has no "
                "look-ahead, look-behind and backreferences."
            ) from None
        if self._pattern.search(b""):
            raise PatternError(f"{pattern!r} matches the empty text, so it says nothing about what to hide.")

    def spans(self, text: str) -> list[Span]:
        """Where the text matches. Empty matches are left out."""
        try:
            data = text.encode()
        except UnicodeEncodeError:
            data = _SURROGATE.sub("\ufffd", text).encode()
        spans = list(self._spans(data))
        return spans if len(data) == len(text) else list(_in_characters(data, spans))

    def _spans(self, data: bytes) -> Iterator[Span]:
        """The same in bytes."""
        budget = _STEPS_PER_TEXT + _STEPS_PER_BYTE * len(data)
        place = count = 0
        while place < len(data):
            is_limited = count >= _UNLIMITED_MATCHES
            end = min(len(data), place + 2 * _LONGEST_MATCH) if is_limited else len(data)
            match = self._pattern.search(data, place, end)
            start, stop = match.span() if match else (end, end)
            if is_limited and start > place + _LONGEST_MATCH and end < len(data):
                # It may be cut off: it is searched again with more behind it.
                place = _next_character(data, place + _LONGEST_MATCH)
                continue
            if match is None:
                return
            count += 1
            budget -= end - start
            if budget < 0:
                yield start, len(data)
                return
            if stop > start:
                yield start, stop
            place = stop if stop > place else _next_character(data, place + 1)


def _next_character(data: bytes, place: int) -> int:
    while place < len(data) and data[place] & 0xC0 == 0x80:
        place += 1
    return place


def _in_characters(data: bytes, spans: list[Span]) -> Iterator[Span]:
    place = characters = 0
    for start, end in spans:
        first = characters + len(data[place:start].decode())
        place, characters = end, first + len(data[start:end].decode())
        yield first, characters


def _with_unicode_classes(pattern: str) -> str:
    """The pattern with the classes of Python's `re` where those of RE2 are of ASCII only."""
    pieces: list[str] = []
    is_in_class = False
    for token in _TOKEN.findall(pattern):
        name = token[1] if token[0] == "\\" and len(token) == 2 else ""
        if name in _CLASSES:
            pieces.append(_CLASSES[name] if is_in_class else f"[{_CLASSES[name]}]")
        elif name.lower() in _CLASSES and not is_in_class:
            pieces.append(f"[^{_CLASSES[name.lower()]}]")
        else:
            pieces.append(r"\z" if name == "Z" else token)
            if not name and is_in_class:
                is_in_class = token.startswith("[:") or not token.endswith("]")
            elif not name:
                is_in_class = token.startswith("[") and not token.startswith("[:")
    return "".join(pieces)
