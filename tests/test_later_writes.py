"""The last writes of a transaction on PostgreSQL are sent with its COMMIT, and yet behave as if executed at once."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import pytest
from django.db import DatabaseError, DataError, IntegrityError, OperationalError, connection, transaction
from django.test.utils import CaptureQueriesContext

from benchmarks.wire import counting
from sessions_app import actions
from sessions_app.actions.base import lock
from sessions_app.locks import transaction_that_waits
from sessions_app.models import Event, EventKind, Session, unsaved_event
from sessions_app.models.later import insert_later, update_later
from tests import builders
from tests.databases import connected, own_pools, refusing_after
from tools.services import wait_for

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def on_postgresql(migrated_postgres_url: str, django_db_blocker: Any) -> Iterator[None]:
    with django_db_blocker.unblock(), connected(migrated_postgres_url):
        yield


@pytest.fixture
def other() -> Iterator[Any]:
    """Another connection to the same database."""
    wrapper = connection.copy()
    yield wrapper
    wrapper.close()


def titles(wrapper: Any, session: Session) -> list[str]:
    with wrapper.cursor() as cursor:
        cursor.execute("SELECT title FROM sessions_app_session WHERE id = %s", [session.pk])
        return [title for (title,) in cursor.fetchall()]


def retitled(session: Session, title: str) -> None:
    session.title = title
    update_later(session, ("title",))


def an_event(session: Session, **fields: Any) -> Event:
    event = unsaved_event(session, EventKind.NOTED, position=session.position + 1, actor_name="tests")
    for name, value in fields.items():
        setattr(event, name, value)
    return event


def test_a_fork_and_a_rewind_take_five_round_trips(
    migrated_postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # `connected` leaves out the options of the address, and the proxy reads what is not encrypted.
    monkeypatch.setenv("PGSSLMODE", "disable")
    monkeypatch.setenv("PGGSSENCMODE", "disable")
    session = builders.paused()
    point: dict[str, Any] = {
        "actor": builders.SYSTEM,
        "session_id": session.pk,
        "checkpoint_id": builders.branch_of(session).checkpoints.earliest("position").pk,
        "reason": "The customer has called",
    }
    taken = {}
    with counting(migrated_postgres_url) as (url, counts), connected(url):
        for action in (actions.fork, actions.rewind):
            # Each statement is prepared when it is executed for the second time, by a round trip of its own.
            for _ in range(4):
                before = counts.round_trips
                action(**point)
            taken[action.__name__] = counts.round_trips - before
    # BEGIN, the session, the checkpoint, the new branch; all else is sent with the COMMIT.
    assert taken == {"fork": 5, "rewind": 5}


def test_nothing_is_there_for_others_before_the_commit_and_all_of_it_then(other: Any) -> None:
    session = builders.queued(title="before")
    with transaction.atomic():
        retitled(session, "after")
        insert_later(an_event(session))
        assert titles(other, session) == ["before"]
    assert titles(other, session) == ["after"]
    assert session.events.filter(kind=EventKind.NOTED).count() == 1


def test_values_of_every_type_are_stored_as_django_stores_them() -> None:
    texts = 'It\'s 100 % %s \\ "quoted"; COMMIT; -- ü 😀\n'
    session = builders.done(
        title=texts[:100], customer="O'Neil", inputs={"state": {"a'b": [texts, None, 1.5]}}
    )
    session.line, session.assignee = uuid4(), builders.user("operator")
    with transaction.atomic():
        update_later(
            session, [field.attname for field in Session._meta.concrete_fields if not field.generated]
        )
        insert_later(an_event(session, reason=texts, data={"text": texts}, actor=session.assignee))
    stored = Session.objects.filter(pk=session.pk).values().get()
    event = session.events.get(kind=EventKind.NOTED)
    session.save()
    assert stored == Session.objects.filter(pk=session.pk).values().get()
    assert stored["inputs"] == {"state": {"a'b": [texts, None, 1.5]}}
    assert (event.reason, event.data, event.actor, event.kind) == (
        texts,
        {"text": texts},
        session.assignee,
        "noted",
    )


def test_the_next_statement_of_the_transaction_finds_it_written() -> None:
    session = builders.queued(title="before")
    with transaction.atomic():
        retitled(session, "after")
        assert Session.objects.filter(pk=session.pk, title="after").exists()
        insert_later(an_event(session))
        assert lock(session.pk).title == "after"
        assert session.events.filter(kind=EventKind.NOTED).exists()


@pytest.mark.parametrize("looks", [False, True], ids=["with the commit", "before another statement"])
@pytest.mark.parametrize(
    "refused", [{}, {"position": 99, "actor_name": "x" * 151}], ids=["twice", "too long"]
)
def test_what_the_database_refuses_rolls_all_of_it_back_and_the_connection_is_of_use(
    refused: dict[str, Any], looks: bool
) -> None:
    session = builders.queued(title="before")
    an_event(session).save()

    @transaction.atomic
    def write() -> None:
        retitled(session, "after")
        insert_later(an_event(session, **refused))
        if looks:
            titles(connection, session)

    with pytest.raises(DataError if refused else IntegrityError):
        write()
    assert titles(connection, session) == ["before"]
    with transaction.atomic():
        retitled(session, "again")
    assert titles(connection, session) == ["again"]
    assert session.events.filter(kind=EventKind.NOTED).count() == 1


def that_cannot_be_sent(value: Any) -> dict[str, Any]:
    return {"inputs": {"value": value}} if not isinstance(value, str) else {"title": value}


@pytest.mark.parametrize("limited", [False, True], ids=["atomic", "with a limit of locks"])
@pytest.mark.parametrize("value, error", [("\ud800", UnicodeEncodeError), (object(), TypeError)])
def test_a_value_that_cannot_be_sent_rolls_all_of_it_back_and_the_connection_is_of_use(
    value: Any, error: type[Exception], limited: bool, other: Any
) -> None:
    session, another = builders.queued(title="before"), builders.queued(title="before")
    hooks: list[str] = []

    @contextmanager
    def block() -> Iterator[None]:
        with transaction_that_waits(5) if limited else transaction.atomic():
            yield

    def write() -> None:
        with block():
            retitled(another, "after")
            transaction.on_commit(lambda: hooks.append("of what was rolled back"))
            for name, field in that_cannot_be_sent(value).items():
                setattr(session, name, field)
                update_later(session, (name,))

    with pytest.raises(error):
        write()
    assert transaction.get_autocommit()
    assert (titles(other, another), hooks) == (["before"], [])
    session = Session.objects.get(pk=session.pk)
    with block():
        retitled(session, "again")
        transaction.on_commit(lambda: hooks.append("of the next one"))
    assert (titles(other, session), hooks) == (["again"], ["of the next one"])


@pytest.mark.parametrize("value", ["\ud800", "with\0inside", "x" * 5000], ids=["text", "zero", "length"])
def test_an_error_of_a_write_that_the_next_reader_catches_rolls_all_of_it_back(
    value: Any, other: Any
) -> None:
    session, another, third = (builders.queued(title="before") for _ in range(3))
    with transaction.atomic():
        retitled(session, "after")
        retitled(another, value)
        retitled(third, "after")
        try:
            with transaction.atomic():
                builders.queued(title="of the reader")
        except (DatabaseError, UnicodeEncodeError):
            pass
        with pytest.raises(transaction.TransactionManagementError):
            Session.objects.count()
    assert [titles(other, each) for each in (session, another, third)] == [["before"]] * 3
    with transaction.atomic():
        retitled(session, "again")
    assert titles(other, session) == ["again"]
    assert not Session.objects.filter(title="of the reader").exists()


def test_a_write_for_which_there_is_no_connection_is_not_made_by_what_the_thread_does_next(
    migrated_postgres_url: str, other: Any
) -> None:
    session = builders.queued(title="before")
    with own_pools(), connected(migrated_postgres_url, pool=1):
        holder = connection.copy()
        holder.ensure_connection()
        with refusing_after(0.1), pytest.raises(OperationalError, match="couldn't get a connection"):
            retitled(session, "after")
        holder.close()
        assert titles(connection, session) == ["before"]
        with transaction.atomic():
            assert titles(connection, session) == ["before"]
    assert titles(other, session) == ["before"]


def test_what_is_rolled_back_is_not_written_by_a_later_transaction() -> None:
    session = builders.queued(title="before")

    @transaction.atomic
    def fail() -> None:
        retitled(session, "after")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with transaction.atomic():
        retitled(session, "rolled back")
        transaction.set_rollback(True)
    with transaction.atomic():
        retitled(session, "with a connection that was closed")
        connection.close()
    with transaction.atomic():
        assert titles(connection, session) == ["before"]


def test_a_savepoint_takes_back_what_was_written_after_it_and_nothing_else() -> None:
    session, another = builders.queued(title="before"), builders.queued(title="before")

    @transaction.atomic
    def fail() -> None:
        retitled(another, "taken back")
        raise ZeroDivisionError

    with transaction.atomic():
        retitled(session, "kept")
        with pytest.raises(ZeroDivisionError):
            fail()
        with transaction.atomic():
            update_later(session, ("customer",))
    assert (titles(connection, session), titles(connection, another)) == (["kept"], ["before"])


def test_outside_of_a_transaction_it_is_written_at_once(other: Any) -> None:
    session = builders.queued(title="before")
    retitled(session, "after")
    assert titles(other, session) == ["after"]
    transaction.set_autocommit(False)
    try:
        retitled(session, "again")
        transaction.rollback()
    finally:
        transaction.set_autocommit(True)
    assert titles(connection, session) == ["after"]


@pytest.mark.parametrize("looks", [False, True], ids=["it waits", "it was executed"])
def test_a_process_that_stands_still_after_such_a_write_keeps_no_lock(other: Any, looks: bool) -> None:
    session = builders.queued(title="before")
    with connection.cursor() as cursor:
        cursor.execute("SET idle_in_transaction_session_timeout = 100")

    def has_ended() -> bool:
        with other.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE pid = %s", [pid])
            return bool(cursor.fetchone()[0] == 0)

    @transaction.atomic
    def stand_still() -> None:
        lock(session.pk)
        retitled(session, "after")
        if looks:
            assert titles(connection, session) == ["after"]
        wait_for(has_ended, "the server to end the idle transaction")

    pid = connection.connection.info.backend_pid
    with pytest.raises(DatabaseError):
        stand_still()
    assert titles(connection, session) == ["before"]


def test_the_writes_stand_in_the_log_of_queries() -> None:
    session = builders.queued(title="before")
    with CaptureQueriesContext(connection) as queries, transaction.atomic():
        retitled(session, "after")
    assert [query["sql"].partition(" ")[0] for query in queries] == ["BEGIN", "UPDATE"]
    assert queries[1]["sql"].endswith("; COMMIT")
