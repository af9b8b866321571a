"""The words that are searched: what is indexed of messages and calls, and a query as both databases take it.

Every word of a query must occur in the same message or call. The parts of a word with punctuation (``CLM-1042``) and of
a quoted phrase must follow each other, and the last word may be the beginning of one. Any part of a text without spaces
(`agentstate.domain.words`) is found. Case, accents and punctuation do not matter. Any text is a valid query. The first
100,000 characters of each message and call are searched. PostgreSQL keeps 256 places of a word in a text, and a
megabyte of its words and their places: what is behind these is not found.

The words are stored in tables of their own, which `sessions_app.finding.search_index` fills a few seconds later: those
of the masked text, and where that hides something, those of the whole text too. ``whole`` says that a person may find
by the latter, since they may reveal hidden values. Others find by the former, and by nothing while the index was made
with another masking than the present one, see `sessions_app.finding.search_masking`.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any
from zlib import crc32

from django.db import connection
from django.db.models import Q
from django.db.models.expressions import RawSQL

from agentstate.domain.words import (
    UNSPACED,
    ends_run,
    is_character,
    is_unspaced,
    normalized,
    runs_of,
    words_of,
)
from agentstate.names import TYPE_TAG
from sessions_app.access.masking import Mask
from sessions_app.finding.newest import Wider, near_or_all
from sessions_app.finding.search_masking import IS_PRESENT, present
from sessions_app.models import Message, ToolCall
from sessions_app.models.selects import Sql

MESSAGES, CALLS, OPEN_CALLS = (f"sessions_app_{name}_words" for name in ("message", "call", "open_call"))
MOST_WORDS = 30
# So many of the newest messages, and calls, are looked through before an index is asked for several words, and so many
# where some of the former match.
NEAR_ROWS, WIDE_ROWS = 5_000, 100_000
# Where fewer match, the index of the words is asked about some so many times as many of the newest rows, not about all.
RECENT_TIMES = 80
# So many marks there are: few enough for the index to be small, and so many that a text of hundreds of words has a
# small part of them.
MARKS = 16_384
# Two letters are the beginning of very many words.
SHORTEST_BEGINNING = 3
# A letter or digit of a script with spaces.
_LETTER = rf"[^\W_{UNSPACED}]"
_PARTS = re.compile(r'"([^"]*)"?|([^\s"]+)')
# The fields of a call that are indexed besides its tool, and what stands between them, which holds no word.
CALL_FIELDS, BETWEEN = ("sent", "arguments", "error", "result"), " · "
# A tool's message is indexed with its call already, and an agent's instructions are in each of its sessions: neither is
# indexed unless a person has written it.
INDEXED_MESSAGES = ~Q(text="") & (~Q(role__in=[Message.Role.TOOL, Message.Role.SYSTEM]) | ~Q(author=""))


def marks_of(words: Sequence[str]) -> set[int]:
    """Numbers that stand for each two whole words which follow each other, and for others: PostgreSQL has an index of
    them. By the words alone it would find, and read, each row in which they stand anywhere.
    """
    return {crc32(f"{word} {following}".encode()) % MARKS for word, following in pairwise(words)}


def plain(value: Any) -> str:
    """JSON as text to be searched and read: ``claim: CLM-1042, amount: 120``. However deeply it is nested."""
    pieces = list[str]()
    rest = [("", value)]
    while rest:
        before, item = rest.pop()
        pieces.append(before)
        if isinstance(item, dict) and TYPE_TAG in item:
            rest.append(("", item.get("value")))
        elif isinstance(item, dict):
            named = ((f"{key}: ", each) for key, each in item.items())
            rest += reversed([(", " * bool(place) + name, each) for place, (name, each) in enumerate(named)])
        elif isinstance(item, list):
            rest += reversed([(", " * bool(place), each) for place, each in enumerate(item)])
        elif item is not None:
            pieces.append(str(item).lower() if isinstance(item, bool) else str(item))
    return "".join(pieces)


def call_text(call: ToolCall, mask: Mask) -> str:
    """The text of a call that is indexed and searched."""
    values = (mask.column(name, getattr(call, name)) for name in CALL_FIELDS)
    return BETWEEN.join(filter(None, [mask.tool(call.tool), *map(plain, values)]))


@dataclass(frozen=True, slots=True)
class Phrase:
    """Words that follow each other.

    beginning: the last of them is only the beginning of a word. ``text``: as it was typed.
    """

    words: list[str]
    beginning: bool
    text: str

    @property
    def fts5(self) -> str:
        return f'"{" ".join(self.words)}"' + "*" * self.beginning

    @property
    def tsquery(self) -> str:
        return " <-> ".join(f"'{word}'" for word in self.words) + ":*" * self.beginning

    @property
    def marks(self) -> set[int]:
        return marks_of(self.words[:-1] if self.beginning else self.words)

    @property
    def pattern(self) -> str:
        """Finds it in a text, both as it was typed and as words are compared."""
        notations = dict.fromkeys([self.text.casefold(), normalized(self.text)])
        return "|".join(filter(None, map(self._pattern, notations)))

    def _pattern(self, text: str) -> str:
        parts = [part for run in runs_of(text) for part in run]
        if not parts:
            return ""
        pattern = "" if is_unspaced(parts[0]) else f"(?<!{_LETTER})"
        pattern += re.escape(parts[0])
        for before, part in pairwise(parts):
            # Between the two kinds of scripts there is a border of words, whether or not anything stands there.
            pattern += r"[\W_]*" if is_unspaced(before) != is_unspaced(part) else r"[\W_]+"
            pattern += re.escape(part)
        if is_unspaced(parts[-1]):
            return pattern
        return pattern + (f"{_LETTER}*" if self.beginning else f"(?!{_LETTER})")


def parts_of(text: str) -> list[tuple[str, bool]]:
    """What white space separates, and what is quoted, as a whole; and whether it was quoted."""
    return [(quoted or part, bool(quoted)) for quoted, part in _PARTS.findall(text) if quoted or part]


def phrases_of(text: str) -> list[Phrase]:
    """None for a text without any word."""
    parts = [(_sought(part), part, quoted) for part, quoted in parts_of(text)]
    parts = [part for part in parts if part[0]][:MOST_WORDS]
    last = len(parts) - 1
    return [
        Phrase(
            words,
            is_character(words[-1])
            or (not quoted and place == last and len(words[-1]) >= SHORTEST_BEGINNING),
            part,
        )
        for place, (words, part, quoted) in enumerate(parts)
    ]


def _sought(text: str) -> list[str]:
    """The words of a part of a query. What it ends with may go on in a text."""
    words = words_of(text)
    return words[:-1] if len(words) > 1 and ends_run(words[-2], words[-1]) else words


@dataclass(frozen=True, slots=True)
class Words:
    """A query, and by which text of a row it finds. ``whole``: also by what is hidden of it."""

    phrases: list[Phrase]
    whole: bool

    def keys(self, tables: Sequence[str], limit: int | None = None) -> RawSQL:
        """Selects the keys of the rows that match, or only of the newest of each table.

        The whole text of a row stands under its negative key.
        """
        selects, params = [], list[str | int]()
        for table in tables:
            for sign, condition, values in self._ways:
                select, parameters = self._keys(table, sign, condition, values, limit)
                selects.append(f"SELECT key FROM ({select}) AS found")  # noqa: S608
                params += parameters
        return RawSQL(" UNION ALL ".join(selects), params)  # noqa: S611 - our own tables; the query is a parameter

    def _keys(self, table: str, sign: str, condition: str, values: list[str | int], limit: int | None) -> Sql:
        """Those by one of the `_ways`."""
        match, matched = self._match(table)
        select = f"SELECT {sign}rowid AS key FROM {table} WHERE {match} AND {condition}"  # noqa: S608
        parameters = (*matched, *values)
        if limit is None:
            return select, parameters
        # Of one word PostgreSQL knows in how many rows it is.
        if connection.vendor == "sqlite" or sum(len(phrase.words) for phrase in self.phrases) == 1:
            return f"{select} ORDER BY {sign}rowid DESC LIMIT {limit:d}", parameters

        def of_newest(number: int) -> Sql:
            order = "rowid" if sign else "rowid DESC"
            rows = f"SELECT * FROM {table} WHERE {condition} ORDER BY {order} LIMIT {number:d}"  # noqa: S608
            sql = f"SELECT {sign}rowid AS key FROM ({rows}) AS newest WHERE {match} LIMIT {limit:d}"  # noqa: S608
            return sql, (*values, *matched)

        last = f" ORDER BY {sign}rowid + 0 DESC LIMIT {limit:d}"
        # By a BRIN index (migration 0042), which has the rows in the order in which they were written.
        beyond, newest = ("<", "min") if sign else (">", "max")
        rowids = f"SELECT rowid FROM {table} WHERE {condition} ORDER BY {sign}rowid DESC LIMIT {NEAR_ROWS:d}"  # noqa: S608
        span = f"{newest}(rowid) - ({newest}(rowid) - {'max' if sign else 'min'}(rowid)) * {RECENT_TIMES:d}"
        recent = f"{select} AND rowid {beyond} (SELECT {span} FROM ({rowids}) AS near_rows){last}"  # noqa: S608
        # Half as many again as would be enough if they were spread evenly.
        some, few = limit * NEAR_ROWS // WIDE_ROWS, 1 + limit * 3 // (RECENT_TIMES * 2)
        wider = [
            Wider(of_newest(WIDE_ROWS), some, limit - 1),
            Wider((recent, (*parameters, *values)), few, some - 1),
        ]
        return near_or_all(of_newest(NEAR_ROWS), (select + last, parameters), limit, wider=wider)

    def _match(self, table: str) -> Sql:
        """Whether a row matches, as a condition that an index of the table serves."""
        if connection.vendor == "sqlite":
            return f"{table} MATCH %s", (self._query,)
        marked = [phrase for phrase in self.phrases if phrase.marks]
        others = [phrase for phrase in self.phrases if not phrase.marks]
        conditions, values = [], list[Any]()
        if others:
            conditions.append("words @@ %s::tsquery")
            values.append(_tsquery(others))
        if marked:
            # The index of the marks finds few rows. That of the words would be read as well, if it could be.
            conditions.append("marks @> %s::smallint[] AND (words @@ %s::tsquery) IS TRUE")
            values += [sorted(set().union(*[phrase.marks for phrase in marked])), _tsquery(marked)]
        return " AND ".join(conditions), tuple(values)

    def match_of(self, table: str, key: str) -> tuple[str, list[str | int]]:
        """Whether the row with this key, an expression, matches: for PostgreSQL, which asks it of each row.

        As a join it would be left to the server, which does not know in how many of these rows a word is.
        """
        texts, params = [], list[str | int]()
        for sign, condition, values in self._ways:
            stored = f"rowid = {sign}{key} AND {condition}"
            texts.append(f"(SELECT words @@ %s::tsquery FROM {table} WHERE {stored})")  # noqa: S608
            params += [self._query, *values]
        return " OR ".join(texts), params

    @property
    def _ways(self) -> list[tuple[str, str, list[str | int]]]:
        """By which texts rows are found: the sign of their keys in the index, and a condition with its parameters."""
        if not self.whole:
            return [("", f"rowid > 0 AND {IS_PRESENT}", [present()])]
        return [("", "rowid > 0", []), ("-", "rowid < 0", [])]

    @property
    def _query(self) -> str:
        if connection.vendor == "sqlite":
            return " AND ".join(phrase.fts5 for phrase in self.phrases)
        return _tsquery(self.phrases)


def _tsquery(phrases: Sequence[Phrase]) -> str:
    return " & ".join(phrase.tsquery for phrase in phrases)


def call_tables() -> list[str]:
    return [CALLS, OPEN_CALLS] if connection.vendor == "sqlite" else [CALLS]
