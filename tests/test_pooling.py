"""Requests share the connections of a pool: who hashes a password holds none, and who gets none may try again."""

from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth.hashers import MD5PasswordHasher
from django.db import OperationalError, connection, transaction
from django.test import Client

from sessions_app import pooling
from sessions_app.access.logins import Backend
from tests import builders
from tests.databases import connected, in_use, own_pools, refusing_after

pytestmark = pytest.mark.slow

PASSWORD = "correct horse"
DOORS = ["/login/", "/admin/login/"]


@pytest.fixture(autouse=True)
def only_one_connection(migrated_postgres_url: str, django_db_blocker: Any) -> Iterator[None]:
    with django_db_blocker.unblock(), own_pools(), connected(migrated_postgres_url, pool=1):
        yield


@pytest.fixture
def held_while_hashing(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many connections were in use each time that a password was hashed."""
    held: list[int] = []
    connection.ensure_connection()  # the pool is made with the first one
    encode = MD5PasswordHasher.encode

    def noted(*args: Any) -> str:
        held.append(in_use())
        return encode(*args)

    monkeypatch.setattr(MD5PasswordHasher, "encode", noted)
    return held


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("password", [PASSWORD, "wrong"])
@pytest.mark.parametrize("known", [True, False])
def test_no_connection_is_held_while_a_password_is_hashed(
    held_while_hashing: list[int], door: str, password: str, known: bool
) -> None:
    name = builders.user("supervisor").username if known else "nobody"
    held_while_hashing.clear()
    answer = Client().post(door, {"username": name, "password": password})
    assert answer.status_code == (302 if known and password == PASSWORD else 200)
    assert held_while_hashing == [0]


def test_a_transaction_keeps_its_connection_while_a_password_is_hashed(
    held_while_hashing: list[int],
) -> None:
    user = builders.user("viewer")
    held_while_hashing.clear()
    with transaction.atomic():
        assert Backend().authenticate(None, user.username, PASSWORD) == user
    assert held_while_hashing == [1]


@pytest.mark.parametrize("path", ["/inbox/", "/login/", "/admin/"])
def test_a_request_that_gets_no_connection_is_told_when_to_come_again(path: str, settings: Any) -> None:
    settings.AGENTSTATE_LEASE_SECONDS = 7
    client = Client()
    client.force_login(builders.user("supervisor"))
    connection.close()
    other = connection.copy()
    other.ensure_connection()
    try:
        with refusing_after(0.05):
            answer = client.get(path)
    finally:
        other.close()
    text = answer.content.decode()
    assert (answer.status_code, answer["Retry-After"]) == (503, "7")
    assert "No connection to the database was free in time" in text
    assert "Nothing has changed; try again in 7 s." in text
    assert client.get(path, follow=True).status_code == 200


def test_another_error_is_not_taken_for_a_pool_without_a_free_connection() -> None:
    with pytest.raises(Exception, match="no_such_table") as raised, connection.cursor() as cursor:
        cursor.execute("SELECT * FROM no_such_table")
    assert not pooling.is_timeout(raised.value)
    assert not pooling.is_timeout(OperationalError("couldn't get a connection"))
