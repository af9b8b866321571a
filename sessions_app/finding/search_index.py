"""Adds new messages and calls to the tables that `sessions_app.finding.search_words` reads, and the names of sessions.

The sweep calls `update`, or a process that does nothing else (`sessions_app.finding.search_follower`), so a step of a
session never waits for this, and is found a few seconds later. Any number of processes may update at once, and any of
them may be killed: each row is added once, none is left out.

A call is indexed as soon as it is requested, and again with its result once it has ended; then it never changes.

What is indexed is the masked text, under the row's key; where the mask hides something, the whole text stands under
the negative key.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress
from operator import concat
from typing import Any, Protocol, Self

from django.db import connection, transaction
from django.db.models import Model
from django.db.models.expressions import RawSQL

from agentstate.domain.words import words_of
from agentstate.names import ENDED_CALL_STATES
from sessions_app.access.masking import Mask
from sessions_app.finding import search_follower, search_masking, shown_names
from sessions_app.finding.search_words import (
    CALL_FIELDS,
    CALLS,
    INDEXED_MESSAGES,
    MESSAGES,
    OPEN_CALLS,
    call_text,
    marks_of,
)
from sessions_app.models import Message, ShownName, ToolCall

# Rows may be committed in another order than that of their keys: how far behind the mark they are looked for.
LATE = 10_000
# So many rows are read at once, and so many characters are enough for one transaction.
_READ_AT_ONCE = 100
_ENOUGH_CHARACTERS = 1_000_000
_LAST_POSITION = 16_383
# A key, and the words of its text.
Doc = tuple[int, list[str]]
# The rows of some documents: one after the other for SQLite, a list of each column for PostgreSQL.
Prepared = list[Any]


@dataclass(frozen=True, slots=True)
class _Text:
    """
    docs: the text as it is shown, and the whole one where that differs.
    characters: of the whole one.
    ended: it never changes again.
    """

    pk: int
    docs: list[Doc]
    characters: int
    ended: bool

    @classmethod
    def of(cls, pk: int, masked: str, whole: str, *, ended: bool = True) -> Self:
        docs = [(pk, words_of(masked))]
        if masked != whole:
            docs.append((-pk, words_of(whole)))
        return cls(pk, docs, len(whole), ended)


def update(seconds: float = 1.0) -> bool:
    """Add new rows, in short transactions, for about so many seconds. Returns whether there are more.

    What is written meanwhile is left for the next call, unless there is a whole batch of it: each look for new rows
    takes as long as to add some dozens of them.

    An index of which no masking is stored is empty, or an earlier version has made it of whole texts only.
    """
    end = time.monotonic() + seconds
    index: _Index = _Sqlite() if connection.vendor == "sqlite" else _Postgres()
    unknown = search_masking.stored() is None
    if _column(index.restarted) or (unknown and Mask.configured().hides_anything):
        rebuild()
    elif unknown:
        search_masking.store()
    # Each of them returns whether there may be more.
    while _add_messages(index) | _add_calls(index) | _close_calls(index) | _add_names(index):
        if time.monotonic() > end:
            return True
    return False


def rebuild() -> None:
    """Empty the index; the next updates add everything again, with the present masking."""
    with transaction.atomic():
        search_masking.store()
        kept = [search_masking.NAME, search_follower.NAME]
        _execute("UPDATE sessions_app_search_mark SET upto = 0 WHERE name NOT IN (%s, %s)", kept)
        if connection.vendor != "sqlite":
            _execute(f"TRUNCATE {MESSAGES}, {CALLS}, {ShownName._meta.db_table}")
            return
        ShownName.objects.all().delete()
        _execute(f"DELETE FROM {OPEN_CALLS}")  # noqa: S608
        for table in (MESSAGES, CALLS):
            _execute(f"INSERT INTO {table} ({table}) VALUES ('delete-all')")  # noqa: S608


class _Index(Protocol):
    """What differs between the two databases."""

    batch: int
    """How many rows are added in one transaction."""

    closed: int
    """How many calls are indexed again in one transaction."""

    late: int
    """How many keys behind the mark may have been committed later than those before it."""

    restarted: str
    """Selects a row if keys have restarted (`manage.py flush`): the index then has words of other rows."""

    def new(self, model: type[Model]) -> tuple[int, list[int]]:
        """The mark, and the next keys that may have to be added."""

    def prepared(self, docs: Iterable[Doc]) -> Prepared:
        """What `add` and `close` take. Takes its time, and so is called before the transaction begins."""

    def add(self, model: type[Model], mark: int, upto: int, ended: Prepared, still_open: Prepared) -> bool:
        """Add the documents, and move the mark to ``upto``. Returns False if another process was faster."""

    def ended_calls(self) -> list[int]:
        """The next calls that were indexed before they had ended, and have, or were deleted. One query."""

    def close(self, keys: Sequence[int], docs: Prepared) -> None:
        """Index ended calls with their results, and drop those that were deleted. What is done already is left."""


class _Sqlite:
    """One process writes at a time, so keys are committed in their order: all rows up to the mark are indexed."""

    # Steps of sessions wait while this writes: usually for a millisecond.
    batch = closed = 50
    late = 0
    restarted = """
        SELECT 1 FROM sessions_app_search_mark mark LEFT JOIN sqlite_sequence given
        ON given.name = 'sessions_app_' || mark.name WHERE mark.upto > COALESCE(given.seq, 0)
    """

    def new(self, model: type[Model]) -> tuple[int, list[int]]:
        mark = _mark(model)
        rows = model._default_manager.filter(pk__gt=mark).order_by("pk")
        return mark, list(rows.values_list("pk", flat=True)[: self.batch])

    def prepared(self, docs: Iterable[Doc]) -> Prepared:
        return [(pk, " ".join(words)) for pk, words in docs]

    def add(self, model: type[Model], mark: int, upto: int, ended: Prepared, still_open: Prepared) -> bool:
        is_first = _move_mark(model, mark, upto)
        if is_first:
            self._insert(MESSAGES if model is Message else CALLS, ended)
            self._insert(OPEN_CALLS, still_open)
        return is_first

    def ended_calls(self) -> list[int]:
        return _ended_calls(OPEN_CALLS, "found.rowid > 0", self.closed)

    def close(self, keys: Sequence[int], docs: Prepared) -> None:
        delete = f"DELETE FROM {OPEN_CALLS} WHERE rowid IN (%s, %s)"  # noqa: S608
        closed = {pk for pk in keys if _execute(delete, [pk, -pk])}
        self._insert(CALLS, [doc for doc in docs if abs(doc[0]) in closed])

    def _insert(self, table: str, docs: Prepared) -> None:
        if docs:
            with connection.cursor() as cursor:
                cursor.executemany(f"INSERT INTO {table} (rowid, words) VALUES (%s, %s)", docs)  # noqa: S608


class _Postgres:
    """Keys may be committed late, so rows that are not indexed yet are looked for behind the mark, too."""

    # Each batch looks through LATE rows behind the mark, so that many small ones would do little else.
    batch = 2_000
    closed = 500
    late = LATE
    restarted = """
        SELECT 1 FROM sessions_app_search_mark mark JOIN pg_sequences given
        ON given.schemaname = current_schema() AND given.sequencename = 'sessions_app_' || mark.name || '_id_seq'
        WHERE mark.upto > COALESCE(given.last_value, 0)
    """

    def new(self, model: type[Model]) -> tuple[int, list[int]]:
        mark = _mark(model)
        rows = model._default_manager.filter(pk__gt=mark - LATE).order_by("pk")
        if model is Message:
            rows = rows.filter(INDEXED_MESSAGES)
        indexed_rows = RawSQL(f"SELECT rowid FROM {_table(model)} WHERE rowid > %s", [mark - LATE])  # noqa: S608, S611
        return mark, list(rows.exclude(pk__in=indexed_rows).values_list("pk", flat=True)[: self.batch])

    def prepared(self, docs: Iterable[Doc]) -> Prepared:
        rows = [
            (pk, _tsvector(words), f"{{{','.join(map(str, sorted(marks_of(words))))}}}") for pk, words in docs
        ]
        return [list(column) for column in zip(*rows, strict=True)] or [[], [], []]

    def add(self, model: type[Model], mark: int, upto: int, ended: Prepared, still_open: Prepared) -> bool:
        if upto > mark:
            _move_mark(model, mark, upto)
        self._insert(_table(model), ended, still_open)
        return True

    def ended_calls(self) -> list[int]:
        return _ended_calls(CALLS, "found.rowid > 0 AND NOT found.ended", self.closed)

    def close(self, keys: Sequence[int], docs: Prepared) -> None:
        # Those that another process has closed already are there. Those of an index that was emptied since are added.
        still_open = (
            f"SELECT rowid FROM {CALLS} WHERE rowid = ANY(%s) AND NOT ended ORDER BY rowid FOR UPDATE"  # noqa: S608
        )
        delete = f"DELETE FROM {CALLS} WHERE rowid IN ({still_open}) RETURNING abs(rowid)"  # noqa: S608
        closed = set(_column(delete, [[*keys, *(-key for key in keys)]]))
        are_closed = [abs(pk) in closed for pk in docs[0]]
        self._insert(CALLS, [list(compress(column, are_closed)) for column in docs], self.prepared([]))

    def _insert(self, table: str, ended: Prepared, still_open: Prepared) -> None:
        """All in one statement, in the order of their keys: another process may add some of them at the same time."""
        docs = [*map(concat, ended, still_open), [True] * len(ended[0]) + [False] * len(still_open[0])]
        is_ended = ", ended" if table == CALLS else ""
        if docs[0]:
            _execute(
                f"INSERT INTO {table} (rowid, words, marks{is_ended}) "  # noqa: S608
                f"SELECT rowid, words::tsvector, marks::smallint[]{is_ended} "
                "FROM unnest(%s::bigint[], %s::text[], %s::text[], %s::boolean[]) AS docs (rowid, words, marks, ended) "
                "ORDER BY rowid ON CONFLICT DO NOTHING",
                docs,
            )


def _add_messages(index: _Index) -> bool:
    return _add(index, Message, _texts_of_messages)


def _add_calls(index: _Index) -> bool:
    return _add(index, ToolCall, _texts_of_calls)


def _add(index: _Index, model: type[Model], texts_of: Callable[[Sequence[int]], Iterator[_Text]]) -> bool:
    mark, keys = index.new(model)
    if not keys:
        return False
    texts, read = _read(keys, texts_of)
    ended = index.prepared(doc for text in texts if text.ended for doc in text.docs)
    still_open = index.prepared(doc for text in texts if not text.ended for doc in text.docs)
    with transaction.atomic():
        added = search_masking.may_add() and index.add(model, mark, keys[read - 1], ended, still_open)
    return not added or read < len(keys) or len(keys) == index.batch


def _close_calls(index: _Index) -> bool:
    keys = index.ended_calls()
    if not keys:
        return False
    texts, read = _read(keys, _texts_of_calls)
    docs = index.prepared(doc for text in texts for doc in text.docs)
    with transaction.atomic():
        if may_add := search_masking.may_add():
            index.close(keys[:read], docs)
    return not may_add or read < len(keys) or len(keys) == index.closed


def _add_names(index: _Index) -> bool:
    return shown_names.add(index.batch, index.late)


def _read(
    keys: Sequence[int], texts_of: Callable[[Sequence[int]], Iterator[_Text]]
) -> tuple[list[_Text], int]:
    """The texts of the first rows, as many as are enough for one transaction, and of how many of the keys they are."""
    texts: list[_Text] = []
    characters = read = 0
    while read < len(keys) and characters < _ENOUGH_CHARACTERS:
        for text in texts_of(keys[read : read + _READ_AT_ONCE]):
            texts.append(text)
            characters += text.characters
        read = min(read + _READ_AT_ONCE, len(keys))
    return texts, read


def _texts_of_messages(keys: Sequence[int]) -> Iterator[_Text]:
    mask = Mask.configured()
    rows = Message.objects.filter(INDEXED_MESSAGES, pk__in=keys).values_list("pk", "role", "text")
    for pk, role, text in rows:
        yield _Text.of(pk, mask.message(role, text), text)


def _texts_of_calls(keys: Sequence[int]) -> Iterator[_Text]:
    mask = Mask.configured()
    # With the columns only that are indexed, and the status.
    for call in ToolCall.objects.filter(pk__in=keys).only("status", "tool", *CALL_FIELDS):
        ended = call.status in ENDED_CALL_STATES
        yield _Text.of(call.pk, call_text(call, mask), call_text(call, Mask.none()), ended=ended)


def _ended_calls(table: str, are_open: str, most: int) -> list[int]:
    """:param are_open: The condition that rows of the table are of calls that had not ended."""
    # Looked up one by one: beside some thousand open calls, PostgreSQL would read all calls for a join.
    status = f"(SELECT status FROM {ToolCall._meta.db_table} WHERE id = found.rowid)"  # noqa: S608
    states = ", ".join(f"'{state}'" for state in ENDED_CALL_STATES)
    return _column(
        f"SELECT rowid FROM {table} found WHERE {are_open} "  # noqa: S608
        f"AND COALESCE({status}, '{ENDED_CALL_STATES[0]}') IN ({states}) ORDER BY 1 LIMIT {most}"
    )


def _tsvector(words: list[str]) -> str:
    """The words with their places. They consist of letters and digits, so nothing must be escaped."""
    lexemes: dict[str, str] = {}
    for place, word in enumerate(words[:_LAST_POSITION], 1):
        lexemes[word] = f"{lexemes[word]},{place}" if word in lexemes else f"'{word}':{place}"
    for word in words[_LAST_POSITION:]:
        lexemes.setdefault(word, f"'{word}':{_LAST_POSITION}")
    return " ".join(lexemes.values())


def _table(model: type[Model]) -> str:
    return MESSAGES if model is Message else CALLS


def _mark(model: type[Model]) -> int:
    name = model._meta.model_name or ""
    return _column("SELECT upto FROM sessions_app_search_mark WHERE name = %s", [name])[0]


def _move_mark(model: type[Model], before: int, after: int) -> bool:
    """False if another process has moved it meanwhile."""
    move = "UPDATE sessions_app_search_mark SET upto = %s WHERE name = %s AND upto = %s"
    return _execute(move, [after, model._meta.model_name or "", before]) == 1


def _execute(sql: str, params: Sequence[Any] = ()) -> int:
    with connection.cursor() as cursor:
        cursor.execute(sql, params)
        return int(cursor.rowcount)


def _column(sql: str, params: Sequence[Any] = ()) -> list[int]:
    with connection.cursor() as cursor:
        cursor.execute(sql, params)
        return [row[0] for row in cursor.fetchall()]
