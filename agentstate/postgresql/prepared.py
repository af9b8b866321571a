"""Statements that the server parses and plans once for a connection: only their values are sent with each execution."""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.adapt import Dumper
from psycopg.errors import FeatureNotSupported, InvalidSqlStatementName
from psycopg.pq import TransactionStatus

if TYPE_CHECKING:
    from agentstate.postgresql.base import DatabaseWrapper


class PreparedCursor(psycopg.RawCursor[Any]):
    """Sends the values of a statement separately. Takes texts with ``%s`` as Django does, and the bytes that
    `numbered` returns.

    It is a raw cursor because psycopg's other cursors parse a long statement again each time it is executed.
    """

    def execute(self, query: Any, params: Any = None, **options: Any) -> Any:
        statement = query if isinstance(query, bytes) else _numbered(query)
        try:
            return super().execute(statement, params, **options)
        except (FeatureNotSupported, InvalidSqlStatementName):
            # A migration has changed the type of a column: "cached plan must not change result type". Or something has
            # deallocated the statement, and psycopg does not know of it. In a transaction the error has to be told;
            # psycopg forgets all statements when that is rolled back.
            if self.connection.info.transaction_status != TransactionStatus.IDLE:
                raise
            self.connection.execute("DEALLOCATE ALL")
            return super().execute(statement, params, **options)


@lru_cache(maxsize=1024)
def _numbered(statement: str) -> bytes:
    """The statement with ``$1``, ``$2`` and so on, as the server takes it."""
    numbers = count(1)
    return re.sub("%[%s]", lambda found: "%" if found[0] == "%%" else f"${next(numbers)}", statement).encode()


@dataclass(frozen=True, slots=True)
class _Place:
    """Stands in a statement for a value that is sent with it."""

    number: int


class _PlaceDumper(Dumper):
    def dump(self, obj: _Place) -> bytes:
        return b"$%d" % obj.number

    quote = dump


class Prepared:
    """A connection of which every cursor is a `prepared_cursor`."""

    def __init__(self, connection: "DatabaseWrapper") -> None:
        self._connection = connection
        self.cursor, self.features, self.ops = connection.prepared_cursor, connection.features, connection.ops

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def prepared(self) -> "Prepared":
        return self


def numbered(
    connection: psycopg.Connection[Any], statement: str, values: Sequence[Any], places: Collection[int]
) -> bytes:
    """The statement for a `PreparedCursor`, as the server takes it.

    :param places: The indexes of the values that are sent with each execution, in this order. All others are part
        of the statement: the server has to know them to see which index with a condition it may use.
    """
    numbers = {index: _Place(number) for number, index in enumerate(places, start=1)}
    with psycopg.ClientCursor(connection) as cursor:
        cursor.adapters.register_dumper(_Place, _PlaceDumper)
        text = cursor.mogrify(statement, [numbers.get(index, value) for index, value in enumerate(values)])
    return text.encode()
