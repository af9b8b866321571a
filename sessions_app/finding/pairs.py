"""Where PostgreSQL finds a text that its index of parts of words does not find, or not exactly.

The index of parts of words (trigrams) finds a text by three letters or digits in a row, in the alphabets that the
database's locale knows. Migration 0034 has an index of all pairs of characters, whatever they are: by it a name of two
Chinese characters is found, an initial with its dot, or two letters within a word.

Neither index says in which order the words of a title are: of a text of several words they find each title that has
them all. Migration 0041 has an index of the characters around spaces, by which few of these are left.
"""

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from django.db import connection
from django.db.models import BooleanField, F, Func, Q

# What the trigrams find in any locale.
_LETTERS = re.compile(r"[A-Za-z0-9]{3}")
SEPARATOR = chr(31)
# Those that begin at an odd place, and those at an even one; the expression of the index is the same.
_PAIRS = (
    r"string_to_array(regexp_replace(UPPER({0}::text), '..', '\&' || chr(31), 'g') || chr(31) || "
    r"regexp_replace(substr(UPPER({0}::text), 2), '..', '\&' || chr(31), 'g'), chr(31))"
)
# The last character of a word, the spaces behind it, and the first character of the next word. A character is part of
# one of these only, so the spaces behind a word of one character may be missing. The index has the same expression.
_AROUND_SPACES = (
    r"string_to_array(regexp_replace(UPPER({0}::text), ' *[^ ]*([^ ] +[^ ])', '\1' || chr(31), 'g'), chr(31))"
)
# The same in a text, behind words of at least two characters. Only of these characters, since others may have capitals
# that depend on what stands beside them.
_AROUND_SPACES_OF_TEXT = re.compile(r"(?<=[^ ])(?=([!-~] +[!-~]))")


def has_trigrams(text: str) -> bool:
    """Whether the text is found by the parts of words, in any locale of the database."""
    return _LETTERS.search(text) is not None


def capitals(texts: Sequence[str]) -> dict[str, str]:
    """Each text as PostgreSQL compares it, which depends on the locale of the database. One query, if there are any."""
    if not texts:
        return {}
    with connection.cursor() as cursor:
        cursor.execute("SELECT " + ", ".join(["UPPER(%s::text)"] * len(texts)), list(texts))
        return dict(zip(texts, cursor.fetchone(), strict=True))


def pairs_of(text: str) -> list[str]:
    """Each two characters of the text in a row that the index has as a pair."""
    pairs = [first + second for first, second in pairwise(text)]
    return [pair for pair in pairs if SEPARATOR not in pair]


class _Contains(Func):
    output_field = BooleanField()

    def __init__(self, name: str, text: str) -> None:
        super().__init__(F(name))
        self.text = text

    def as_sql(self, compiler: Any, connection: Any, **_: Any) -> tuple[str, tuple[Any, ...]]:  # type: ignore[override]
        column, _none = compiler.compile(self.source_expressions[0])
        pairs = pairs_of(self.text)
        keys = ", ".join(["%s"] * len(pairs))
        # As `LIKE`, the text would be looked up in the index of parts of words too, and all of that be read. Of a pair
        # that it does not know PostgreSQL expects 5,000 in a million rows, so that it would look for them in the order
        # of a list; of these it expects a third to meet each of the other two conditions.
        capitals_of_field = f"UPPER({column}::text)"
        stands_there = (
            f"strpos({capitals_of_field}, %s) > 0 AND length({capitals_of_field}) >= {len(self.text)}"
        )
        # The cheapest first, where they are asked in this order.
        return f"({stands_there} AND {_PAIRS.format(column)} @> ARRAY[{keys}])", (self.text, *pairs)


def contains_by_pairs(name: str, text: str) -> Q:
    """The condition that the field, in capitals, contains the text, which has a pair. PostgreSQL only."""
    return Q(_Contains(name, text))


def has_known_spaces(text: str) -> bool:
    """Whether the index of what stands around spaces has some of the text's."""
    return _AROUND_SPACES_OF_TEXT.search(text) is not None


class _HasSpaces(Func):
    output_field = BooleanField()

    def __init__(self, name: str, text: str) -> None:
        super().__init__(F(name))
        self.keys = sorted(set(_AROUND_SPACES_OF_TEXT.findall(text)))

    def as_sql(self, compiler: Any, connection: Any, **_: Any) -> tuple[str, tuple[Any, ...]]:  # type: ignore[override]
        column, _none = compiler.compile(self.source_expressions[0])
        capitals_of_keys = ", ".join(["UPPER(%s::text)"] * len(self.keys))
        return f"{_AROUND_SPACES.format(column)} @> ARRAY[{capitals_of_keys}]", tuple(self.keys)


def has_spaces_of(name: str, text: str) -> Q:
    """The condition that the field has what stands around the text's spaces, as far as the index is sure to have that.
    Each field that contains the text meets it, and few others do. PostgreSQL only.

    :param name: Of a field with that index.
    :param text: One that `has_known_spaces`.
    """
    return Q(_HasSpaces(name, text))
