"""The tables that `sessions_app.finding.search_words` reads, and how rows are added to them: on each of the databases.

``rowid`` is the key of the message or call, the negative one for its whole text. What removes the words of rows that
are deleted are triggers (migration 0048).
"""

from collections.abc import Container, Iterable, Sequence
from itertools import compress
from operator import concat
from typing import Any, Protocol

from django.db import connection
from django.db.models import Model
from django.db.models.expressions import RawSQL

from agentstate.names import ENDED_CALL_STATES
from sessions_app.finding.search_words import CALLS, INDEXED_MESSAGES, MESSAGES, OPEN_CALLS, marks_of
from sessions_app.models import Message, ShownName, ToolCall

# Rows may be committed in another order than that of their keys: how far behind the mark they are looked for.
LATE = 10_000
_LAST_POSITION = 16_383
# What PostgreSQL's tsvector holds: so many bytes of words with their places, of which it keeps so many of a word.
_TSVECTOR_BYTES, _TSVECTOR_PLACES = 1_048_575, 256
# A key, and the words of its text.
Doc = tuple[int, list[str]]
# The rows of some documents: one after the other for SQLite, a list of each column for PostgreSQL.
Prepared = list[Any]


class Index(Protocol):
    """What differs between the two databases."""

    batch: int
    """How many rows are added in one transaction."""

    closed: int
    """How many calls are indexed again in one transaction."""

    late: int
    """How many keys behind the mark may have been committed later than those before it."""

    restarted: str
    """Selects a row if keys have restarted (`manage.py flush`): the index then has words of other rows."""

    def empty(self) -> None:
        """Remove all words, and all shown names."""

    def new(self, model: type[Model]) -> tuple[int, list[int]]:
        """The mark, and the next keys that may have to be added."""

    def prepared(self, docs: Iterable[Doc]) -> Prepared:
        """What `add` and `close` take. Takes its time, and so is called before the transaction begins."""

    def present(self, model: type[Model], keys: Sequence[int]) -> set[int]:
        """Which of the rows exist. They are not deleted before the transaction ends.

        Called before words are written: else those of a row that is deleted meanwhile would stay, since what removes
        them (migration 0048) does not see them yet.
        """

    def only(self, keys: Container[int], docs: Prepared) -> Prepared:
        """Those of these rows."""

    def add(self, model: type[Model], mark: int, upto: int, ended: Prepared, still_open: Prepared) -> bool:
        """Add the documents, and move the mark to ``upto``. Returns False if another process was faster."""

    def ended_calls(self) -> list[int]:
        """The next calls that were indexed before they had ended, and have, or were deleted. One query."""

    def close(self, keys: Sequence[int], docs: Prepared) -> None:
        """Index ended calls with their results, and drop those that were deleted. What is done already is left."""


class Sqlite:
    """One process writes at a time, so keys are committed in their order: all rows up to the mark are indexed."""

    # Steps of sessions wait while this writes: usually for a millisecond.
    batch = closed = 50
    late = 0
    restarted = """
        SELECT 1 FROM sessions_app_search_mark mark LEFT JOIN sqlite_sequence given
        ON given.name = 'sessions_app_' || mark.name WHERE mark.upto > COALESCE(given.seq, 0)
    """

    def empty(self) -> None:
        # To delete row by row would take as long as to add them.
        for table in (MESSAGES, CALLS, OPEN_CALLS):
            [create] = _column("SELECT sql FROM sqlite_master WHERE name = %s", [table])
            execute(f"DROP TABLE {table}")
            execute(create)
        ShownName.objects.all().delete()

    def new(self, model: type[Model]) -> tuple[int, list[int]]:
        mark = _mark(model)
        rows = model._default_manager.filter(pk__gt=mark).order_by("pk")
        return mark, list(rows.values_list("pk", flat=True)[: self.batch])

    def prepared(self, docs: Iterable[Doc]) -> Prepared:
        return [(pk, " ".join(words)) for pk, words in docs]

    def present(self, model: type[Model], keys: Sequence[int]) -> set[int]:
        return set(model._default_manager.filter(pk__in=keys).values_list("pk", flat=True))

    def only(self, keys: Container[int], docs: Prepared) -> Prepared:
        return [doc for doc in docs if abs(doc[0]) in keys]

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
        closed = {pk for pk in keys if execute(delete, [pk, -pk])}
        self._insert(CALLS, self.only(closed, docs))

    def _insert(self, table: str, docs: Prepared) -> None:
        if docs:
            with connection.cursor() as cursor:
                cursor.executemany(f"INSERT INTO {table} (rowid, words) VALUES (%s, %s)", docs)  # noqa: S608


class Postgres:
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

    def empty(self) -> None:
        execute(f"TRUNCATE {MESSAGES}, {CALLS}, {ShownName._meta.db_table}")

    def new(self, model: type[Model]) -> tuple[int, list[int]]:
        mark = _mark(model)
        rows = model._default_manager.filter(pk__gt=mark - LATE).order_by("pk")
        if model is Message:
            rows = rows.filter(INDEXED_MESSAGES)
        indexed_rows = RawSQL(f"SELECT rowid FROM {_table(model)} WHERE rowid > %s", [mark - LATE])  # noqa: S608, S611
        return mark, list(rows.exclude(pk__in=indexed_rows).values_list("pk", flat=True)[: self.batch])

    def prepared(self, docs: Iterable[Doc]) -> Prepared:
        rows = [
            (pk, tsvector(words), f"{{{','.join(map(str, sorted(marks_of(words))))}}}") for pk, words in docs
        ]
        return [list(column) for column in zip(*rows, strict=True)] or [[], [], []]

    def present(self, model: type[Model], keys: Sequence[int]) -> set[int]:
        # A step that changes one of these calls does not wait for such a lock.
        rows = f"SELECT id FROM {model._meta.db_table} WHERE id = ANY(%s) ORDER BY id FOR KEY SHARE"  # noqa: S608
        return set(_column(rows, [list(keys)]))

    def only(self, keys: Container[int], docs: Prepared) -> Prepared:
        are_of_these = [abs(pk) in keys for pk in docs[0]]
        return [list(compress(column, are_of_these)) for column in docs]

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
        self._insert(CALLS, self.only(closed, docs), self.prepared([]))

    def _insert(self, table: str, ended: Prepared, still_open: Prepared) -> None:
        """All in one statement, in the order of their keys: another process may add some of them at the same time."""
        docs = [*map(concat, ended, still_open), [True] * len(ended[0]) + [False] * len(still_open[0])]
        is_ended = ", ended" if table == CALLS else ""
        if docs[0]:
            execute(
                f"INSERT INTO {table} (rowid, words, marks{is_ended}) "  # noqa: S608
                f"SELECT rowid, words::tsvector, marks::smallint[]{is_ended} "
                "FROM unnest(%s::bigint[], %s::text[], %s::text[], %s::boolean[]) AS docs (rowid, words, marks, ended) "
                "ORDER BY rowid ON CONFLICT DO NOTHING",
                docs,
            )


def index_of_database() -> Index:
    return Sqlite() if connection.vendor == "sqlite" else Postgres()


def has_restarted(index: Index) -> bool:
    """Whether the index has words of other rows, since their keys have restarted."""
    return bool(_column(index.restarted))


def _ended_calls(table: str, are_open: str, most: int) -> list[int]:
    """:param are_open: The condition that rows of the table are of calls that had not ended."""
    # Looked up one by one: beside some thousand open calls, PostgreSQL would read all calls for a join.
    status = f"(SELECT status FROM {ToolCall._meta.db_table} WHERE id = found.rowid)"  # noqa: S608
    states = ", ".join(f"'{state}'" for state in ENDED_CALL_STATES)
    return _column(
        f"SELECT rowid FROM {table} found WHERE {are_open} "  # noqa: S608
        f"AND COALESCE({status}, '{ENDED_CALL_STATES[0]}') IN ({states}) ORDER BY 1 LIMIT {most}"
    )


def tsvector(words: list[str]) -> str:
    """The words with their places. They consist of letters and digits, so nothing must be escaped.

    Those behind what a tsvector holds are left out.
    """
    places: dict[str, list[int]] = {}
    size = 0
    for place, word in enumerate(words, 1):
        known = places.get(word)
        if known is None:
            # The number of places takes two bytes, as each place does, and begins at an even one.
            size += len(word.encode()) + 5
            if size <= _TSVECTOR_BYTES:
                places[word] = [min(place, _LAST_POSITION)]
        elif place <= _LAST_POSITION and len(known) < _TSVECTOR_PLACES:
            size += 2
            if size <= _TSVECTOR_BYTES:
                known.append(place)
        if size > _TSVECTOR_BYTES:
            break
    return " ".join(f"'{word}':{','.join(map(str, those))}" for word, those in places.items())


def _table(model: type[Model]) -> str:
    return MESSAGES if model is Message else CALLS


def _mark(model: type[Model]) -> int:
    name = model._meta.model_name or ""
    return int(_column("SELECT upto FROM sessions_app_search_mark WHERE name = %s", [name])[0])


def _move_mark(model: type[Model], before: int, after: int) -> bool:
    """False if another process has moved it meanwhile."""
    move = "UPDATE sessions_app_search_mark SET upto = %s WHERE name = %s AND upto = %s"
    return execute(move, [after, model._meta.model_name or "", before]) == 1


def execute(sql: str, params: Sequence[Any] = ()) -> int:
    with connection.cursor() as cursor:
        cursor.execute(sql, params)
        return int(cursor.rowcount)


def _column(sql: str, params: Sequence[Any] = ()) -> list[Any]:
    with connection.cursor() as cursor:
        cursor.execute(sql, params)
        return [row[0] for row in cursor.fetchall()]
