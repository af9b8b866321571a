"""Times that PostgreSQL sends are read exactly, whatever their fraction, and refused where Python has no such time."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import DataError, connection
from hypothesis import example, given
from hypothesis import strategies as st

from agentstate.postgresql.times import UtcLoader
from tests.databases import connected


@pytest.fixture
def on_postgresql(migrated_postgres_url: str, django_db_blocker: Any) -> Iterator[None]:
    with django_db_blocker.unblock(), connected(migrated_postgres_url):
        yield


def read(time: str, zone: str = "UTC") -> datetime:
    """What is read of this time of the server, with this time zone of the connection."""
    with connection.cursor() as cursor:
        cursor.execute(f"SET TIME ZONE '{zone}'")
        try:
            cursor.execute(f"SELECT '{time}'::timestamptz")
            [value] = cursor.fetchone()
        finally:
            cursor.execute("SET TIME ZONE 'UTC'")
    assert isinstance(value, datetime)
    return value


def as_sent(time: datetime) -> bytes:
    """As PostgreSQL writes it: without the zeros at the end of the fraction, and without minutes of the offset."""
    return f"{time:%Y-%m-%d %H:%M:%S.%f}".zfill(26).rstrip("0").rstrip(".").encode() + b"+00"


@given(st.datetimes(timezones=st.just(UTC)))
@example(datetime(5, 2, 28, 1, tzinfo=UTC))
def test_any_time_is_read_to_the_microsecond(time):
    value = UtcLoader(0).load(as_sent(time))
    assert (value, value.tzinfo) == (time, UTC)


@pytest.mark.slow
@pytest.mark.usefixtures("on_postgresql")
def test_times_of_the_server_are_read_as_they_are_in_any_time_zone_of_the_connection():
    noon = datetime(2026, 11, 25, 12, tzinfo=UTC)
    for zone in ("UTC", "Asia/Kolkata", "America/St_Johns"):
        for microseconds in (0, 1, 120_000, 999_999):
            time = noon + timedelta(microseconds=microseconds)
            value = read(time.isoformat(), zone)
            assert (value, value.tzinfo) == (time, UTC)
    assert read("0001-01-01 00:00:00+00") == datetime(1, 1, 1, tzinfo=UTC)
    assert read("9999-12-31 23:59:59.999999+00") == datetime.max.replace(tzinfo=UTC)


@pytest.mark.slow
@pytest.mark.usefixtures("on_postgresql")
@pytest.mark.parametrize(
    "time", ["infinity", "-infinity", "0044-03-15 12:00:00+00 BC", "10000-01-01 00:00:00+00"]
)
def test_a_time_that_python_does_not_have_is_a_data_error(time):
    with pytest.raises(DataError, match=r"timestamp too|can't parse timestamp"):
        read(time)


@pytest.mark.slow
@pytest.mark.usefixtures("on_postgresql")
def test_a_time_that_python_has_in_another_time_zone_only_is_a_data_error_too():
    with pytest.raises(DataError, match="too early or too late"):
        read("10000-01-01 00:00:00+00", "America/St_Johns")


@pytest.mark.slow
@pytest.mark.usefixtures("on_postgresql")
def test_the_connections_of_the_desk_read_times_so():
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
        oid = cursor.connection.adapters.types["timestamptz"].oid
        assert cursor.connection.adapters.get_loader(oid, 0) is UtcLoader
        assert cursor.adapters.get_loader(oid, 0) is UtcLoader
