"""What was opened on a connection of a pool is of no use behind the `close` of the connection, nor in a forked process:
it would act in the transaction of somebody else.
"""

import os
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import InterfaceError, OperationalError, connection, connections, transaction

from sessions_app.models import Session
from tests.databases import backend, connected, own_pools

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _two_sessions(migrated_postgres_url: str, django_db_blocker: Any) -> Iterator[None]:
    """This thread works on a pool of one connection, in a database with two sessions."""
    with django_db_blocker.unblock(), connected(migrated_postgres_url):
        for agent in ("one", "two"):
            Session.objects.create(agent=agent)
        try:
            with own_pools(), connected(migrated_postgres_url, pool=1):
                yield
        finally:
            with connection.cursor() as cursor:
                cursor.execute("TRUNCATE sessions_app_session CASCADE")


def half_read() -> Any:
    """An iterator on a cursor of the server."""
    rows = Session.objects.order_by("agent").iterator(chunk_size=1)
    assert next(rows).agent == "one"
    return rows


def open_cursor() -> Any:
    cursor = connection.cursor()
    cursor.execute("SELECT 1")
    return cursor


def agents() -> list[str]:
    with connections["default"].copy().cursor() as cursor:
        cursor.execute("SELECT agent FROM sessions_app_session ORDER BY agent")
        return [agent for (agent,) in cursor.fetchall()]


def test_an_iterator_that_is_read_on_does_not_disturb_the_next_user_of_its_connection() -> None:
    with transaction.atomic():
        rows = half_read()
    connection.close()
    with transaction.atomic():
        Session.objects.create(agent="next")
        with pytest.raises(OperationalError, match="the connection is closed"):
            list(rows)
        Session.objects.create(agent="to the end")
    connection.close()
    assert agents() == ["next", "one", "to the end", "two"]


def test_an_open_cursor_writes_nothing_in_the_transaction_of_the_next_user_of_its_connection() -> None:
    cursor = open_cursor()
    connection.close()
    with transaction.atomic():
        Session.objects.create(agent="next")
        with pytest.raises(OperationalError, match="the connection is closed"):
            cursor.execute("UPDATE sessions_app_session SET agent = 'changed'")
    connection.close()
    assert agents() == ["next", "one", "two"]


def test_a_connection_whose_cursors_are_closed_is_used_again() -> None:
    first = backend()
    kept = open_cursor()
    kept.close()
    with transaction.atomic():
        assert len(list(Session.objects.iterator(chunk_size=1))) == 2
    assert list(Session.objects.all())
    connection.close()
    assert backend() == first


def test_a_connection_behind_one_that_was_closed_with_an_open_cursor_is_used_again() -> None:
    kept = open_cursor()
    connection.close()
    second = backend()
    connection.close()
    assert backend() == second
    assert not kept.closed


@pytest.mark.parametrize("in_transaction", [False, True])
def test_a_forked_process_cannot_use_an_open_cursor(in_transaction: bool) -> None:
    transaction.set_autocommit(not in_transaction)
    cursor = open_cursor()
    child = os.fork()
    if child == 0:
        try:
            cursor.execute("UPDATE sessions_app_session SET agent = 'changed'")
        except InterfaceError:
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    if in_transaction:
        transaction.commit()
        transaction.set_autocommit(True)
    cursor.close()
    connection.close()
    assert agents() == ["one", "two"]


@pytest.mark.parametrize("in_transaction", [False, True])
def test_an_iterator_that_a_forked_process_drops_goes_on_in_its_parent(in_transaction: bool) -> None:
    transaction.set_autocommit(not in_transaction)
    rows = half_read()
    child = os.fork()
    if child == 0:
        try:
            rows.close()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert [session.agent for session in rows] == ["two"]
    if in_transaction:
        transaction.commit()
        transaction.set_autocommit(True)


def test_a_process_that_was_forked_without_autocommit_writes_nothing_that_it_cannot_roll_back() -> None:
    transaction.set_autocommit(False)
    Session.objects.create(agent="of the parent")
    child = os.fork()
    if child == 0:
        try:
            Session.objects.create(agent="of the child")
        except InterfaceError as error:
            transaction.set_autocommit(True)
            of_child = Session.objects.count()
            os._exit(0 if "forked inside of a transaction" in str(error) and of_child == 2 else 2)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    transaction.commit()
    transaction.set_autocommit(True)
    connection.close()
    assert agents() == ["of the parent", "one", "two"]
