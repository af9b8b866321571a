"""Times that PostgreSQL sends, read by Python's own parser in C.

Django derives its loader from psycopg's in Python, which takes several microseconds for each value: a tenth of what an
answer to an open page of a session takes.
"""

from datetime import UTC, datetime
from typing import Any

from django.db.backends.postgresql.psycopg_any import BaseTzLoader
from psycopg import DataError
from psycopg.adapt import AdaptersMap


class UtcLoader(BaseTzLoader):  # type: ignore[misc]
    """Reads a ``timestamptz`` as a time in UTC, like Django's loader for this time zone.

    :raises DataError: as there, for a time that Python does not have.
    """

    timezone = UTC

    def load(self, data: Any) -> datetime:
        try:
            time = datetime.fromisoformat(str(data, "ascii"))
        except ValueError:  # before the year 1, after 9999, infinity, or not in the style of ISO 8601
            time = super().load(data)
        if time.tzinfo is UTC:
            return time
        try:
            return time.astimezone(UTC)  # something has set another time zone for the connection
        except OverflowError:
            raise DataError(f"This time is too early or too late in UTC: {time}") from None


def reading_utc(context: AdaptersMap) -> AdaptersMap:
    """A copy of the adapters that a connection to the database is made with, with `UtcLoader`."""
    adapters = AdaptersMap(context)
    adapters.register_loader("timestamptz", UtcLoader)
    return adapters
