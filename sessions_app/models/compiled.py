"""Compiled queries: query sets whose SQL Django generates once per process, and not each time.

To build and compile a query set takes Django nine tenths of the time of a small query, and a page makes twenty of them.
A compiled query is a function that returns a query set. It is called with markers in place of its arguments, and the
SQL that Django makes of that is kept, and executed with the values of each call. A call returns what the query set
would have yielded, as a list. On PostgreSQL the server keeps its plan as well: it is made without the values of a call.
Where the best plan depends on these, `planned_anew` leaves the server to make one for each call.

The function does nothing with its positional arguments but have columns compared with them: to a time it may add what
is always the same, and it may ask whether one is None, and how many values a tuple has. With a `Q` it does nothing but
filter by it, or ask whether it is empty. Keyword arguments choose what it asks for, a limit or an order: each choice
has SQL of its own. It reads nothing that changes: neither settings nor the clock. The tests compare calls with what
Django would make of them (`tests/compiling.py`).
"""

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import partial, update_wrapper
from inspect import Parameter, signature
from threading import Lock
from typing import Any, Generic, ParamSpec, TypeVar

from django.core.exceptions import EmptyResultSet, ValidationError
from django.db import DEFAULT_DB_ALIAS, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Q, QuerySet
from django.db.models.query import FlatValuesListIterable, ModelIterable, ValuesListIterable
from django.db.models.sql.compiler import SQLCompiler

from sessions_app.models.conditions import UnknownConditionError
from sessions_app.models.constants import with_constants
from sessions_app.models.markers import Adapt, marked, places_of, shape_of

P = ParamSpec("P")
Row = TypeVar("Row")
# Each number of branches, of values that a query names, and each form of a condition has SQL of its own: all pairs of
# filters of the inbox have 76. Of more, the first that was made is forgotten; of more values Django makes it each time.
MOST_SHAPES = 300
MOST_VALUES = 100
# Of larger numbers Django knows which columns cannot hold them.
LARGEST = 2**31 - 1


class CompiledQuery(Generic[P, Row]):
    """Made by `compiled` or `planned_anew`. May be called from any thread; one query.

    :param prepared: Whether PostgreSQL keeps its plan.
    """

    def __init__(self, query: Callable[P, QuerySet[Any, Row]], *, prepared: bool = True) -> None:
        update_wrapper(self, query)
        self._query = query
        self._prepared = prepared
        self._kept: dict[object, _Kept | None] = {}
        self._lock = Lock()  # of whoever adds to what is kept
        parameters = signature(query).parameters.values()
        self._choices = {each.name for each in parameters if each.kind == Parameter.KEYWORD_ONLY}

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> list[Row]:
        """The rows.

        :param args: Numbers, texts, UUIDs, aware times, None, and tuples of them; and conditions. Django compiles those
            that `sessions_app.models.conditions` does not know each time.
        :param kwargs: Hashable values, for parameters that are keyword-only.
        :raises TypeError: for an argument of another type, or one that is to be compared and is passed by its name.
        :raises ValueError: if the query is not compiled to SQL that has each positional argument as a parameter, and
            none of them is a condition.
        """
        connection = connections[DEFAULT_DB_ALIAS]
        values: list[Any] = []
        kept = self._kept_for(connection, args, kwargs, values)
        if kept is None:
            return list(self.query_set(*args, **kwargs))
        return list(kept.iterable(_Source(kept.compiler_of(connection, values))))

    def first(self, *args: P.args, **kwargs: P.kwargs) -> Row | None:
        """The first of the rows that a call finds, which are all read; None if it finds none."""
        return next(iter(self(*args, **kwargs)), None)

    def sql_with_params(self, *args: P.args, **kwargs: P.kwargs) -> tuple[str, tuple[Any, ...]]:
        """The SQL, for another statement to embed it, like `sql_with_params` of Django's query.

        :raises EmptyResultSet: as there.
        """
        values: list[Any] = []
        kept = self._kept_for(connections[DEFAULT_DB_ALIAS], args, kwargs, values)
        if kept is None:
            return self.query_set(*args, **kwargs).query.sql_with_params()
        return kept.sql, kept.parameters_of(values)

    def query_set(self, *args: P.args, **kwargs: P.kwargs) -> QuerySet[Any, Row]:
        """The query set itself, which Django compiles when it is read."""
        return self._query(*args, **kwargs)

    def _kept_for(
        self,
        connection: BaseDatabaseWrapper,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        values: list[Any],
    ) -> "_Kept | None":
        """What is kept for these arguments, whose values are added to `values`; None if Django has to make the SQL."""
        if not self._choices.issuperset(kwargs):
            raise TypeError(f"Pass {sorted(kwargs.keys() - self._choices)} by position, not by name.")
        try:
            shape = (connection.vendor, shape_of(args, values), *kwargs.items())
        except UnknownConditionError:
            return None
        if len(values) > MOST_VALUES or any(isinstance(n, int) and abs(n) > LARGEST for n in values):
            return None
        try:
            kept = self._kept[shape]
        except KeyError:
            kept = self._new(connection, args, kwargs)
            with self._lock:
                if len(self._kept) >= MOST_SHAPES:
                    self._kept.pop(next(iter(self._kept)))
                self._kept[shape] = kept
        if kept is not None and kept.locks and not connection.in_atomic_block:
            return None  # Django refuses it
        return kept

    def _new(
        self, connection: BaseDatabaseWrapper, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> "_Kept | None":
        has_condition = any(isinstance(argument, Q) for argument in args)
        try:
            return _keep(partial(self._query, **kwargs), args, connection, prepared=self._prepared)
        except (ValueError, TypeError, ValidationError):
            # A column of a condition may take its values only, and no markers; or no row can meet a part of it, and
            # Django leaves that out. So Django compiles it, and raises what it has to.
            if has_condition:
                return None
            raise


def prepared_cursor(connection: Any) -> Any:
    """A cursor for a statement that is written out, and that the database is to parse and plan once for a connection.

    SQLite does so with every statement.
    """
    return connection.prepared_cursor() if connection.vendor == "postgresql" else connection.cursor()


def compiled(query: Callable[P, QuerySet[Any, Row]]) -> CompiledQuery[P, Row]:
    """The query that the function returns, compiled once, and on PostgreSQL planned once for a connection."""
    return CompiledQuery(query)


def planned_anew(query: Callable[P, QuerySet[Any, Row]]) -> CompiledQuery[P, Row]:
    """The query that the function returns, compiled once, and planned with the values of each call."""
    return CompiledQuery(query, prepared=False)


@dataclass(frozen=True, slots=True)
class _Kept:
    """
    compiler: as Django leaves it behind when it has made the SQL, without the connection.
    places: of the parameters that are arguments: the index of the parameter, the number of the argument, and how it is
        adapted to the database.
    locks: the rows that are found are locked, which takes a transaction.
    statement: the SQL in which all else stands as constants, so that the database sees which index with a condition it
        may use: on PostgreSQL the statement that is prepared. None where there is none.
    """

    iterable: Any
    compiler: SQLCompiler
    sql: str
    parameters: Sequence[Any]
    places: Sequence[tuple[int, int, Adapt]]
    locks: bool
    statement: bytes | str | None

    def parameters_of(self, values: Sequence[Any]) -> tuple[Any, ...]:
        parameters = list(self.parameters)
        for index, number, adapt in self.places:
            parameters[index] = adapt(values[number])
        return tuple(parameters)

    def compiler_of(self, connection: BaseDatabaseWrapper, values: Sequence[Any]) -> SQLCompiler:
        """A compiler that executes the SQL for these values."""
        compiler = copy(self.compiler)
        compiler.connection = connection
        columns = compiler.col_count if compiler.has_extra_select else None
        if self.statement is None:
            execute = partial(_rows, connection.cursor, self.sql, self.parameters_of(values), columns)
        else:
            sent = tuple([adapt(values[number]) for _, number, adapt in self.places])
            execute = partial(_rows, partial(prepared_cursor, connection), self.statement, sent, columns)
        compiler.execute_sql = lambda *_, **__: execute()  # type: ignore[method-assign, assignment]
        return compiler


def _rows(
    new_cursor: Callable[[], Any], statement: Any, values: tuple[Any, ...], columns: int | None
) -> list[list[Any]]:
    """The rows as blocks of them, as Django's compilers return them. Its own reads a hundred at a time."""
    with new_cursor() as cursor:
        cursor.execute(statement, values)
        rows = cursor.fetchall()
    return [rows if columns is None else [row[:columns] for row in rows]]


@dataclass(slots=True)
class _Source:
    """What Django's iterables of rows take for a query set, and for its query."""

    compiler: SQLCompiler
    db: str = DEFAULT_DB_ALIAS
    _known_related_objects: dict[Any, Any] = field(default_factory=dict)

    @property
    def query(self) -> "_Source":
        return self

    def get_compiler(self, using: str) -> SQLCompiler:
        return self.compiler


def _keep(
    query: Callable[..., QuerySet[Any, Any]],
    args: tuple[Any, ...],
    connection: BaseDatabaseWrapper,
    *,
    prepared: bool,
) -> _Kept | None:
    """None if Django, for these markers, makes no SQL, since it knows that nothing can be found."""
    markers: list[Any] = []
    query_set = query(*marked(args, markers))
    iterable = query_set._iterable_class
    if iterable not in (ModelIterable, ValuesListIterable, FlatValuesListIterable):
        raise ValueError("A compiled query finds rows of its model, or lists of values.")
    if query_set._prefetch_related_lookups:  # type: ignore[attr-defined]
        raise ValueError("A compiled query does not prefetch related rows.")
    compiler = query_set.query.get_compiler(DEFAULT_DB_ALIAS)
    try:
        sql, parameters = compiler.as_sql()
    except EmptyResultSet:
        return None
    places = list(places_of(parameters, markers))
    if unused := set(range(len(markers))) - {number for _, number, _ in places}:
        raise ValueError(f"Arguments {sorted(unused)} of this query are not parameters of its SQL.")
    statement: bytes | str | None = None
    columns = [column for column, *_ in compiler.select[: compiler.col_count]]
    has_composite_fields = compiler.has_composite_fields(columns)
    compiler.has_composite_fields = lambda _: has_composite_fields
    if connection.vendor == "postgresql":
        # Those of SQLite keep the connection of this thread, which may end.
        converters = compiler.get_converters(columns)
        compiler.get_converters = lambda _: converters
    if connection.vendor == "postgresql" and prepared:
        statement = connection.numbered(sql, parameters, [index for index, *_ in places])  # type: ignore[attr-defined]
    elif connection.vendor == "sqlite":
        statement = with_constants(sql, parameters, {index for index, *_ in places})
    compiler.connection = None
    return _Kept(
        iterable, compiler, sql, parameters, places, bool(query_set.query.select_for_update), statement
    )
