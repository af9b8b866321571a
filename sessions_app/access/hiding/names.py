"""Names of hidden keys: the one rule for keys of JSON, names in texts, columns, elements and attributes.

A name consists of words. A word ends at every character that is neither a letter nor a digit, between a letter and a
digit, where a capital follows a lower-case letter (``customerIban``), and before the last of several capitals that a
lower-case letter follows (``IBANNumber``). In scripts without upper and lower case every letter may begin a word.

A name is hidden if some of its words, one after the other and written without anything between them, are the letters
and digits of a hidden key, whatever their case; an ``s`` may follow. The key ``iban`` hides ``IBAN``, ``I-Ban``,
``customer_iban``, ``customerIban``, ``iban-number``, ``iban2`` and ``ibans``, but neither ``ibanez`` nor ``cuiban``.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator
from functools import lru_cache

from sessions_app.access.hiding import Span

# What may stand between two characters of a key.
_BETWEEN = r"[\s_.\-]{0,3}"
# In JSON within a text, the letter of `\n` is no part of the name that follows.
_ESCAPES = ("\\n", "\\r", "\\t", "\\b", "\\f")
# Longer names are cut for the comparison: they are texts.
_LONGEST = 2_000


def normalized(key: str) -> str:
    """The letters and digits of a key, whatever its case. Two keys that are equal here are the same key."""
    return "".join(filter(str.isalnum, unicodedata.normalize("NFC", key).lower()))


class HiddenNames:
    """Finds the names of hidden keys.

    :param keys: Normalized keys; empty ones are ignored.
    """

    def __init__(self, keys: Iterable[str]) -> None:
        longest_first = sorted(filter(None, keys), key=lambda key: (-len(key), key))
        spellings = [spelling for key in longest_first for spelling in _spellings(key)]
        names = "|".join(_BETWEEN.join(map(re.escape, spelling)) for spelling in spellings)
        # Looked ahead, since a name may begin within what only looks like another.
        self._candidates = re.compile(rf"(?=({names})s?)", re.IGNORECASE) if names else None
        self._first = frozenset(longest_first)
        self._hides_cached = lru_cache(maxsize=4096)(self._hides)

    def __bool__(self) -> bool:
        return self._candidates is not None

    def find(self, text: str) -> Iterator[Span]:
        """Where the text names hidden keys, as whole words, in order."""
        if self._candidates is None:
            return
        for candidate in self._candidates.finditer(text):
            start, end = candidate.span(1)
            if not _is_border(text, start):
                continue
            if _is_border(text, end):
                yield start, end
            elif text[end] in "sS" and _is_border(text, end + 1):
                yield start, end + 1

    def hides(self, name: str) -> bool:
        """Whether a value under this name is hidden."""
        # A long name would stay in memory with the cache.
        return self._hides_cached(name) if len(name) <= 100 else self._hides(name)

    def is_key(self, text: str) -> bool:
        """Whether the text is the name of a hidden key and nothing else."""
        return normalized(text[:_LONGEST]) in self._first

    def _hides(self, name: str) -> bool:
        composed = unicodedata.normalize("NFC", name[:_LONGEST])
        return next(self.find(composed), None) is not None


def _spellings(key: str) -> set[str]:
    """The key with its accents as characters of their own, and without."""
    return {key, unicodedata.normalize("NFD", key)}


def _is_border(text: str, place: int) -> bool:
    """Whether a word may begin or end between the characters before and after ``place``."""
    if place <= 0 or place >= len(text):
        return True
    before, after = text[place - 1], text[place]
    if not (before.isalnum() and after.isalnum()):
        return not unicodedata.combining(after)
    if text.startswith(_ESCAPES, place - 2) and place > 1:
        return True
    if before.isdigit() != after.isdigit() or _has_no_case(before) or _has_no_case(after):
        return True
    if before.islower():
        return after.isupper()
    return after.isupper() and text[place + 1 : place + 2].islower()


def _has_no_case(character: str) -> bool:
    return character.isalpha() and not character.isupper() and not character.islower()
