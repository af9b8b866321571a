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
from itertools import islice
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
    message_text,
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

    An index of which no masking is stored is empty, or an earlier version has made it of whole texts only.
    """
    end = time.monotonic() + seconds
    index: _Index = _Sqlite() if connection.vendor == "sqlite" else _Postgres()
    unknown = search_masking.stored() is None
    if _column(index.restarted) or (unknown and Mask.configured().hides_anything):
        rebuild()
    elif unknown:
        search_masking.store()
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
    """How many calls are indexed again in one transaction, by a statement or two for each."""

    late: int
    """How many keys behind the mark may have been committed later than those before it."""

    restarted: str
    """Selects a row if keys have restarted (`manage.py flush`): the index then has words of other rows."""

    def new(self, model: type[Model]) -> tuple[int, list[int]]:
        """The mark, and the next keys that may have to be added."""

    def prepared(self, docs: Iterable[Doc]) -> Prepared:
        """What `add` and `close` take. Takes its time, and so is called before the transaction begins."""

    def add(self, model: type[Model], mark: int, upto: int, ended: Prepared, still_open: Prepared) -> None:
        """Add the documents, and move the mark to ``upto``."""

    def open_calls(self) -> list[int]: ...

    def close(self, pk: int, docs: Prepared) -> None:
        """Index an ended call with its result, or drop one that was deleted. Does nothing if that is done already."""


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

    def add(self, model: type[Model], mark: int, upto: int, ended: Prepared, still_open: Prepared) -> None:
        if _move_mark(model, mark, upto):
            self._insert(MESSAGES if model is Message else CALLS, ended)
            self._insert(OPEN_CALLS, still_open)

    def open_calls(self) -> list[int]:
        return _column(f"SELECT rowid FROM {OPEN_CALLS} WHERE rowid > 0")  # noqa: S608

    def close(self, pk: int, docs: Prepared) -> None:
        if _execute(f"DELETE FROM {OPEN_CALLS} WHERE rowid IN (%s, %s)", [pk, -pk]):  # noqa: S608
            self._insert(CALLS, docs)

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
        return [list(column) for column in zip(*rows, strict=True)]

    def add(self, model: type[Model], mark: int, upto: int, ended: Prepared, still_open: Prepared) -> None:
        if upto > mark:
            _move_mark(model, mark, upto)
        if model is Message:
            self._insert(MESSAGES, "rowid, words, marks", "", ended)
            return
        self._insert_calls(ended, ended=True)
        self._insert_calls(still_open, ended=False)

    def open_calls(self) -> list[int]:
        return _column(f"SELECT rowid FROM {CALLS} WHERE NOT ended AND rowid > 0")  # noqa: S608

    def close(self, pk: int, docs: Prepared) -> None:
        if _execute(f"DELETE FROM {CALLS} WHERE rowid IN (%s, %s) AND NOT ended", [pk, -pk]):  # noqa: S608
            self._insert_calls(docs, ended=True)

    def _insert_calls(self, docs: Prepared, *, ended: bool) -> None:
        self._insert(CALLS, "rowid, words, marks, ended", f", {ended}", docs)

    def _insert(self, table: str, columns: str, values: str, docs: Prepared) -> None:
        """All in one statement. `values`: of the other columns."""
        if docs:
            _execute(
                f"INSERT INTO {table} ({columns}) SELECT rowid, words::tsvector, marks::smallint[]{values}"  # noqa: S608
                " FROM unnest(%s::bigint[], %s::text[], %s::text[]) AS docs (rowid, words, marks)"
                " ON CONFLICT DO NOTHING",
                docs,
            )


def _add_messages(index: _Index) -> bool:
    mark, keys = index.new(Message)
    if keys:
        texts, read = _read(keys, _texts_of_messages)
        docs = index.prepared(doc for text in texts for doc in text.docs)
        with transaction.atomic():
            if search_masking.may_add():
                index.add(Message, mark, keys[read - 1], docs, [])
    return bool(keys)


def _add_calls(index: _Index) -> bool:
    mark, keys = index.new(ToolCall)
    if keys:
        texts, read = _read(keys, _texts_of_calls)
        ended = index.prepared(doc for text in texts if text.ended for doc in text.docs)
        still_open = index.prepared(doc for text in texts if not text.ended for doc in text.docs)
        with transaction.atomic():
            if search_masking.may_add():
                index.add(ToolCall, mark, keys[read - 1], ended, still_open)
    return bool(keys)


def _close_calls(index: _Index) -> bool:
    open_keys = index.open_calls()
    statuses = (
        dict(ToolCall.objects.filter(pk__in=open_keys).values_list("pk", "status")) if open_keys else {}
    )
    ended = list(
        islice(
            (pk for pk in open_keys if statuses.get(pk, ENDED_CALL_STATES[0]) in ENDED_CALL_STATES),
            index.closed,
        )
    )
    if ended:
        texts, read = _read(ended, _texts_of_calls)
        docs = {text.pk: index.prepared(text.docs) for text in texts}
        with transaction.atomic():
            if search_masking.may_add():
                for pk in ended[:read]:
                    index.close(pk, docs.get(pk, []))
    return bool(ended)


def _add_names(index: _Index) -> bool:
    return shown_names.add(index.batch, index.late)


def _read(
    keys: Sequence[int], texts_of: Callable[[Sequence[int]], Iterator["_Text"]]
) -> tuple[list["_Text"], int]:
    """The texts of the first rows, as many as are enough for one transaction, and of how many of the keys they are."""
    texts: list[_Text] = []
    characters = read = 0
    while read < len(keys) and characters < _ENOUGH_CHARACTERS:
        for text in texts_of(keys[read : read + _READ_AT_ONCE]):
            texts.append(text)
            characters += text.characters
        read = min(read + _READ_AT_ONCE, len(keys))
    return texts, read


def _texts_of_messages(keys: Sequence[int]) -> Iterator["_Text"]:
    mask = Mask.configured()
    for pk, text in Message.objects.filter(INDEXED_MESSAGES, pk__in=keys).values_list("pk", "text"):
        yield _Text.of(pk, message_text(text, mask), text)


def _texts_of_calls(keys: Sequence[int]) -> Iterator["_Text"]:
    mask = Mask.configured()
    # With the columns only that are indexed, and the status.
    for call in ToolCall.objects.filter(pk__in=keys).only("status", "tool", *CALL_FIELDS):
        ended = call.status in ENDED_CALL_STATES
        yield _Text.of(call.pk, call_text(call, mask), call_text(call, Mask.none()), ended=ended)


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


def _execute(sql: str, params: Sequence[str | int | list[int] | list[str]] = ()) -> int:
    with connection.cursor() as cursor:
        cursor.execute(sql, params)
        return int(cursor.rowcount)


def _column(sql: str, params: Sequence[str | int] = ()) -> list[int]:
    with connection.cursor() as cursor:
        cursor.execute(sql, params)
        return [row[0] for row in cursor.fetchall()]
