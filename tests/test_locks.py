"""A lock that another process holds: who waits for it how long, and what they are told."""

import sqlite3
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from django.core.management import CommandError, call_command
from django.db import OperationalError, connection, transaction
from django.test import Client
from django.utils import timezone

from agentstate.durable.port import JournalUnavailable
from sessions_app import actions, locks, tasks, unavailable
from sessions_app.access.errors import Locked, TakesNoWrites
from sessions_app.actions import bulk
from sessions_app.desk.pages import bulk as bulk_pages
from sessions_app.desk.pages.approvals import shown_fingerprint
from sessions_app.finding import search_tables
from sessions_app.models import Approval, Checkpoint, Event, Message, RegisteredAgent, Session, Status
from sessions_app.runtime import leases, recovery, step_rows
from sessions_app.runtime.connection import RunConnection
from tests import builders, sample_agents
from tests.builders import fresh
from tests.databases import locked_elsewhere, without_writes
from tests.driving import desk as driving
from tools.services import wait_for

pytestmark = pytest.mark.slow

REASON = "The customer has called back"
on_postgres = pytest.mark.parametrize("own_database", ["postgres"], indirect=True)
on_sqlite = pytest.mark.parametrize("own_database", ["sqlite"], indirect=True)


@pytest.fixture(autouse=True)
def _use_it(
    own_database: str, django_db_blocker: Any, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> Iterator[None]:
    settings.AGENTSTATE_LEASE_SECONDS = 7
    monkeypatch.setattr(locks, "WAIT_SECONDS", 0.2)
    monkeypatch.setattr(leases, "CLAIM_WAIT_SECONDS", 0.2)
    with django_db_blocker.unblock():
        yield
        # The next test shares this database: no agent, and no session that is due, is left for it.
        RegisteredAgent.objects.all().delete()
        Session.objects.filter(status=Status.RUNNING).update(
            lease_expires_at=timezone.now() + timedelta(days=1)
        )
        Session.objects.filter(status=Status.QUEUED).update(next_run_at=timezone.now() + timedelta(days=1))


@pytest.fixture
def client() -> Client:
    client = Client()
    client.force_login(builders.user("supervisor"))
    return client


def sentence(holder: str) -> str:
    """What the person is told."""
    if connection.vendor == "sqlite":
        what, holder = "The database", "another process"
    else:
        what = "The session"
    return f"{what} is locked by {holder}, which has not finished writing. Nothing has changed; try again in 7 s."


# Actions


@pytest.mark.parametrize(
    "build, holder",
    [(builders.running, "its worker host:1"), (builders.queued, "another request")],
    ids=["running", "queued"],
)
def test_an_action_is_refused_for_now_with_who_holds_the_lock(build: Any, holder: str) -> None:
    session = build()
    before = fresh(session)
    with locked_elsewhere(session), pytest.raises(Locked) as refused:
        actions.pause(actor=builders.SYSTEM, session_id=session.pk, reason=REASON)
    assert str(refused.value) == sentence(holder)
    assert fresh(session).version == before.version
    actions.pause(actor=builders.SYSTEM, session_id=session.pk, reason=REASON)
    assert fresh(session).version == before.version + 1


def test_what_an_action_waits_no_other_transaction_of_its_connection_does() -> None:
    def limit() -> str:
        with connection.cursor() as cursor:
            cursor.execute("PRAGMA busy_timeout" if connection.vendor == "sqlite" else "SHOW lock_timeout")
            return str(cursor.fetchone()[0])

    session, usual = builders.queued(), limit()
    assert usual in ("20000", "12s")
    actions.note(actor=builders.SYSTEM, session_id=session.pk, text="He is patient")
    assert limit() == usual
    with locked_elsewhere(session), pytest.raises(Locked):
        actions.note(actor=builders.SYSTEM, session_id=session.pk, text="He is patient")
    assert limit() == usual


def elsewhere(sql: str, *values: Any) -> Any:
    """The first value that the statement gives on another connection."""
    other = connection.copy()
    try:
        with other.cursor() as cursor:
            cursor.execute(sql, values)
            return cursor.fetchone()[0]
    finally:
        other.close()


def lock_timeout() -> str:
    with connection.cursor() as cursor:
        cursor.execute("SHOW lock_timeout")
        return str(cursor.fetchone()[0])


@on_postgres
def test_a_transaction_on_a_connection_that_has_ended_fails_once() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        [pid] = cursor.fetchone()
    elsewhere("SELECT pg_terminate_backend(%s, 5000)", pid)
    with pytest.raises(OperationalError), locks.transaction_that_waits(1):
        raise AssertionError("It has not begun.")
    with locks.transaction_that_waits(1):
        assert Session.objects.count() >= 0


@on_postgres
def test_a_transaction_that_was_interrupted_while_it_began_is_rolled_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def begin_and_fail(self: Any, *args: Any, **options: Any) -> None:
        execute(self, *args, **options)
        monkeypatch.undo()
        raise KeyboardInterrupt

    connection.ensure_connection()
    execute = psycopg.Connection.execute
    monkeypatch.setattr(psycopg.Connection, "execute", begin_and_fail)
    with pytest.raises(KeyboardInterrupt), locks.transaction_that_waits(1):
        raise AssertionError("It has not begun.")
    assert lock_timeout() == "12s"
    session = builders.queued()
    assert elsewhere("SELECT count(*) FROM sessions_app_session WHERE id = %s", session.pk) == 1


@on_postgres
def test_a_limit_ends_with_its_transaction_also_for_what_follows_its_commit_and_within_another() -> None:
    followed: list[str] = []

    def follow() -> None:
        with transaction.atomic():
            followed.append(lock_timeout())

    with locks.transaction_that_waits(1):
        transaction.on_commit(follow)
        assert lock_timeout() == "1s"
    assert followed == ["12s"]
    with transaction.atomic():
        with locks.transaction_that_waits(1):
            assert lock_timeout() == "1s"
            transaction.set_rollback(True)
        assert lock_timeout() == "12s"
    with locks.transaction_that_waits(1):
        builders.queued(title="Never there")
        transaction.set_rollback(True)
    assert not Session.objects.filter(title="Never there").exists()
    assert lock_timeout() == "12s"


@on_postgres
def test_a_limit_holds_where_transactions_begin_by_themselves() -> None:
    transaction.set_autocommit(False)
    try:
        with locks.transaction_that_waits(1):
            assert lock_timeout() == "1s"
    finally:
        transaction.rollback()
        transaction.set_autocommit(True)
    assert lock_timeout() == "12s"


@on_postgres
def test_rows_can_be_locked_and_read_in_parts_within_it() -> None:
    builders.queued()
    with locks.transaction_that_waits(1):
        assert len(list(Session.objects.select_for_update().iterator(chunk_size=1))) >= 1


def test_another_error_of_the_database_is_not_taken_for_a_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    session = builders.queued()

    def fail(*args: Any, **kwargs: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT * FROM no_such_table")

    monkeypatch.setattr("sessions_app.actions.steer.commit", fail)
    with pytest.raises(Exception, match="no_such_table") as raised:
        actions.pause(actor=builders.SYSTEM, session_id=session.pk, reason=REASON)
    assert not isinstance(raised.value, Locked)
    assert not locks.is_timeout(raised.value)


# The desk, the admin and the command line


def test_a_dialog_comes_back_with_the_reason_and_what_was_typed(client: Client) -> None:
    session = builders.running()
    with locked_elsewhere(session):
        answer = client.post(f"/sessions/{session.pk}/pause/", {"version": 0, "reason": REASON})
    text = answer.content.decode()
    assert (answer.status_code, answer["Retry-After"]) == (503, "7")
    assert sentence("its worker host:1") in text
    assert REASON in text
    again = client.post(
        f"/sessions/{session.pk}/pause/", {"version": fresh(session).version, "reason": REASON}
    )
    assert again.status_code == 302
    assert fresh(session).stop_request == "pause"


def test_a_message_comes_back_as_it_was_typed(client: Client) -> None:
    session = builders.done()
    message = "Please look at the roof, too"
    with locked_elsewhere(session):
        answer = client.post(
            f"/sessions/{session.pk}/message/", {"version": session.version, "text": message}
        )
    assert answer.status_code == 503
    assert sentence("another request") in answer.content.decode()
    assert message in answer.content.decode()
    assert not session.inbox.exists()


def test_pages_are_drawn_while_the_lock_is_held(client: Client) -> None:
    session = builders.lost()
    places = ("", "conversation/", "state/", "checkpoints/", "audit/", "json/", "pause/", "release/")
    began = time.monotonic()
    with locked_elsewhere(session):
        for address in (
            "/?queue=all",
            "/inbox/",
            "/workers/",
            "/bulk/",
            f"/admin/sessions_app/session/{session.pk}/change/",
        ):
            assert client.get(address).status_code == 200, address
        for place in places:
            assert client.get(f"/sessions/{session.pk}/{place}").status_code == 200, place
        text = client.get(f"/sessions/{session.pk}/").content.decode()
    assert time.monotonic() - began < 15, "the pages waited"
    assert "Its worker is lost." in text
    assert "The lease of host:1 ran out" in text


def test_the_admin_asks_again_for_those_that_are_locked(client: Client) -> None:
    held, free = builders.paused(title="Held"), builders.paused(title="Free")
    chosen = {"action": "resume", "_selected_action": [str(held.pk), str(free.pk)], "reason": REASON}
    with locked_elsewhere(held):
        answer = client.post("/admin/sessions_app/session/", chosen)
    text = answer.content.decode()
    assert answer.status_code == 503
    assert f"Held: {sentence('another request')}" in text
    assert REASON in text
    assert f'value="{held.pk}"' in text
    assert (f'value="{free.pk}"' in text) == (connection.vendor == "sqlite")
    assert client.post("/admin/sessions_app/session/", chosen).status_code == 302
    assert {fresh(held).status, fresh(free).status} == {Status.QUEUED}


def test_of_approvals_decided_at_once_the_locked_ones_are_told(client: Client) -> None:
    held, free = (builders.waiting_for_approval(title=title) for title in ("Held", "Free"))
    asked = Approval.objects.filter(session__in=(held, free))
    ticks = [f"{approval.pk}:{shown_fingerprint(approval)}" for approval in asked]
    with locked_elsewhere(held):
        answer = client.post(
            "/approvals/batch/", {"call": ticks, "decision": "approve", "tool": "issue_refund"}
        )
    assert sentence("another request") in answer.content.decode()
    decided = ["", ""] if connection.vendor == "sqlite" else ["", "approved"]
    assert sorted(asked.values_list("decision", flat=True)) == decided


def test_the_command_line_says_it_in_one_line() -> None:
    session = builders.paused()
    with locked_elsewhere(session), pytest.raises(CommandError) as refused:
        call_command("agent", "resume", str(session.pk), "--reason", REASON)
    assert str(refused.value) == sentence("another request")


@on_sqlite
def test_what_is_no_action_is_refused_as_soon_where_the_whole_database_is_locked() -> None:
    user = builders.user("operator")
    with locked_elsewhere():
        began = time.monotonic()
        answer = Client().post("/login/", {"username": user.username, "password": "correct horse"})
    assert time.monotonic() - began < 15  # a connection waits for 20 seconds
    with connection.cursor() as cursor:
        assert cursor.execute("PRAGMA busy_timeout").fetchone() == (20_000,)
    assert (answer.status_code, answer["Retry-After"]) == (503, "7")
    assert "The database is locked by another process" in answer.content.decode()


def test_a_bulk_action_leaves_what_is_locked_for_later(monkeypatch: pytest.MonkeyPatch) -> None:
    held, free = builders.paused(), builders.paused()
    started = actions.bulk_start(
        actor=builders.actor("operator"),
        kind="resume",
        sessions=Session.objects.filter(pk__in=(held.pk, free.pk)),
        reason=REASON,
    )
    with locked_elsewhere(held):
        began = time.monotonic()
        while bulk.run_batch(started.pk):
            assert time.monotonic() - began < 60
        done = 0 if connection.vendor == "sqlite" else 1
        assert bulk_pages.progress(started) == bulk_pages.Progress(done=done, pending=2 - done)
    monkeypatch.setattr(bulk, "QUIET", timedelta(0))
    tasks.sweep()
    assert bulk_pages.progress(started) == bulk_pages.Progress(done=2)


def test_many_locked_sessions_are_waited_for_no_longer_than_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "WAIT_SECONDS", 2.0)
    sessions = [builders.paused() for _ in range(6)]
    began = time.monotonic()
    with locked_elsewhere(*sessions), locks.sharing_one_wait():
        for session in sessions:
            with pytest.raises(Locked):
                actions.resume(actor=builders.SYSTEM, session_id=session.pk, reason=REASON)
    assert time.monotonic() - began < 6 * 2.0


# Workers


def held_by(worker: str) -> tuple[Session, leases.Claim]:
    session = builders.queued()
    claim = leases.claim(session.pk, worker)
    assert claim is not None
    return session, claim


def test_a_locked_session_is_not_claimed_now() -> None:
    session = builders.queued()
    with locked_elsewhere(session):
        assert leases.claim(session.pk, "host:2") is None
    assert fresh(session).epoch == session.epoch
    assert leases.claim(session.pk, "host:2") is not None


@on_postgres
def test_the_sweep_and_claims_leave_a_lost_session_that_is_locked_until_it_is_free() -> None:
    held, free, late = builders.lost(), builders.lost(), builders.waiting_for_approval()
    Approval.objects.filter(session=late).update(expires_at=timezone.now())
    with locked_elsewhere(held, late):
        assert recovery.sweep() == [free.pk]
        assert leases.claim(held.pk, "host:2") is None
        assert fresh(held).status == Status.RUNNING
        assert fresh(late).status == Status.WAITING
    assert set(recovery.sweep()) == {held.pk, free.pk, late.pk}


@on_postgres
def test_a_heartbeat_renews_the_other_leases_where_one_session_is_locked(settings: Any) -> None:
    settings.AGENTSTATE_HEARTBEAT_SECONDS = 0.4
    (held, stuck), (free, claim), (taken, lost) = (held_by("host:1") for _ in range(3))
    Session.objects.filter(pk=taken.pk).update(epoch=lost.epoch + 1)
    later = timezone.now() + timedelta(minutes=1)
    heartbeat = leases.Heartbeat("host:1")
    before = fresh(held).lease_expires_at
    with heartbeat.keeping(stuck), heartbeat.keeping(claim), heartbeat.keeping(lost):
        with locked_elsewhere(held):
            heartbeat.beat(later)
        assert fresh(free).lease_expires_at == later + timedelta(seconds=7)
        assert fresh(held).lease_expires_at == before
        assert [each.lost.is_set() for each in (stuck, claim, lost)] == [False, False, True]
        heartbeat.beat(later)
    assert fresh(held).lease_expires_at == later + timedelta(seconds=7)


def let_idle_transactions_end_at_once() -> int:
    """For the present transaction; returns the number of the server's process."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_backend_pid(), set_config('idle_in_transaction_session_timeout', '200ms', true)"
        )
        return int(cursor.fetchone()[0])


def stand_still(pid: int) -> None:
    """Do nothing in a transaction until PostgreSQL has ended it."""
    other = connection.copy()
    try:

        def ended() -> bool:
            with other.cursor() as cursor:
                cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE pid = %s", [pid])
                return not cursor.fetchone()[0]

        wait_for(ended, "PostgreSQL to end the transaction")
    finally:
        other.close()


@on_postgres
@pytest.mark.parametrize("statement", [True, False], ids=["at a statement", "at the commit"])
def test_a_transaction_that_postgresql_has_ended_is_a_journal_that_is_away(statement: bool) -> None:
    session = builders.paused(title="Before")
    run = RunConnection()

    def write() -> None:
        with run.transaction():
            Session.objects.filter(pk=session.pk).update(title="After")
            stand_still(let_idle_transactions_end_at_once())
            if statement:
                Session.objects.filter(pk=session.pk).update(title="After that")

    with pytest.raises(JournalUnavailable):
        write()
    assert fresh(session).title == "Before"
    with run.transaction():
        Session.objects.filter(pk=session.pk).update(title="Again")
    assert fresh(session).title == "Again"


@on_postgres
def test_postgresql_ends_a_transaction_also_after_many_rows_were_inserted() -> None:
    """After a pipeline of psycopg, as its executemany is one, it would not."""
    session = builders.paused()
    body = {"role": "user", "content": [{"text": "hi"}]}
    rows = [step_rows.NewMessageRow(1000 + n, body, timezone.now()) for n in range(250)]
    run, index = RunConnection(), search_tables.Postgres()

    def insert_messages() -> None:
        with run.transaction():
            pid = let_idle_transactions_end_at_once()
            step_rows.messages(builders.branch_of(session), rows, {})
            stand_still(pid)

    def insert_words() -> None:
        with run.transaction():
            pid = let_idle_transactions_end_at_once()
            index.add(Message, 0, 0, index.prepared([(1, ["hi"]), (2, ["ho"])]), index.prepared([]))
            stand_still(pid)

    for insert in (insert_messages, insert_words):
        with pytest.raises(JournalUnavailable):
            insert()
    assert not Message.objects.filter(branch__session=session, position__gte=1000).exists()


@on_postgres
def test_a_run_whose_transaction_postgresql_has_ended_stops_there_and_writes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def stops(*args: Any, **kwargs: Any) -> None:
        stand_still(let_idle_transactions_end_at_once())

    with driving() as desk:
        desk.agent(sample_agents.plain_talk)
        session = desk.start()
        with monkeypatch.context() as patch:
            patch.setattr("sessions_app.runtime.journal.end_run", stops)
            assert desk.drive(session) == "lost"
        left = fresh(session)
        assert (left.status, left.error) == (Status.RUNNING, "")
        assert not Checkpoint.objects.filter(branch__session=session, kind="end").exists()
        assert desk.events(session) == ["started"]
        Session.objects.filter(pk=session.pk).update(lease_expires_at=timezone.now() - timedelta(seconds=1))
        assert desk.run(session).status == Status.IDLE
        assert Event.objects.filter(session=session, kind="lost").count() == 1


# A database that takes no writes

NO_WRITES = (
    "The database takes no writes at present: it is read-only, its disk is full, or it is being stopped. Nothing has "
    "changed; try again in 7 s."
)


def test_an_action_on_a_database_that_takes_no_writes_is_refused_with_what_was_typed(client: Client) -> None:
    session = builders.done()
    message = "Please look at the roof, too"
    with without_writes():
        answer = client.post(
            f"/sessions/{session.pk}/message/", {"version": session.version, "text": message}
        )
    assert (answer.status_code, answer["Retry-After"]) == (503, "7")
    assert NO_WRITES in answer.content.decode()
    assert message in answer.content.decode()
    assert not session.inbox.exists()


def test_a_sign_in_to_a_database_that_takes_no_writes_is_refused_with_the_reason(client: Client) -> None:
    user = builders.user("operator")
    for password in ("correct horse", "wrong"):
        with without_writes():
            answer = Client().post("/login/", {"username": user.username, "password": password})
        assert (answer.status_code, answer["Retry-After"]) == (503, "7")
        assert NO_WRITES in answer.content.decode()
    with without_writes():
        answer = client.post("/logout/")
    assert (answer.status_code, answer["Retry-After"]) == (503, "7")
    assert client.get("/?queue=all").status_code == 200


def test_pages_are_drawn_of_a_database_that_takes_no_writes(client: Client) -> None:
    session = builders.lost()
    with without_writes():
        for address in ("/?queue=all", "/inbox/", "/workers/", "/bulk/", f"/sessions/{session.pk}/"):
            assert client.get(address).status_code == 200, address


@on_sqlite
def test_a_full_database_takes_no_writes() -> None:
    session = builders.done()

    def fill() -> None:
        for _ in range(100):
            actions.note(actor=builders.SYSTEM, session_id=session.pk, text="He is patient. " * 100)

    with without_writes("full"), pytest.raises(TakesNoWrites):
        # Some of them fit into the last pages.
        fill()


def test_a_bulk_action_waits_for_a_database_that_takes_no_writes() -> None:
    session = builders.paused()
    started = actions.bulk_start(
        actor=builders.actor("operator"),
        kind="resume",
        sessions=Session.objects.filter(pk=session.pk),
        reason=REASON,
    )
    with without_writes():
        assert not bulk.run_batch(started.pk)
    assert bulk_pages.progress(started) == bulk_pages.Progress(done=0, pending=1)
    bulk.run_batch(started.pk)
    assert bulk_pages.progress(started) == bulk_pages.Progress(done=1)


@pytest.mark.parametrize("command", [["agent", "pause", "ID", "--reason", REASON], ["update_search"]])
def test_a_command_on_a_database_that_takes_no_writes_ends_with_a_sentence(command: list[str]) -> None:
    session = builders.queued()
    builders.asked().user("The windscreen is cracked.")
    with without_writes(), pytest.raises(CommandError, match=r"^The database [^\n]*read-?only"):
        call_command(*[str(session.pk) if word == "ID" else word for word in command])


@pytest.mark.parametrize(
    "code, says_so",
    [
        (sqlite3.SQLITE_FULL, True),
        (sqlite3.SQLITE_READONLY_DBMOVED, True),
        (sqlite3.SQLITE_IOERR_SHMSIZE, True),
        (sqlite3.SQLITE_IOERR_READ, False),
        (sqlite3.SQLITE_BUSY, False),
    ],
)
def test_of_what_sqlite_refuses_it_is_known_whether_it_takes_no_writes(code: int, says_so: bool) -> None:
    cause = sqlite3.OperationalError("no")
    cause.sqlite_errorcode = code
    error = OperationalError("no")
    error.__cause__ = cause
    assert unavailable.takes_no_writes(error) is says_so


@pytest.mark.parametrize(
    "state, says_so",
    [("25006", True), ("53100", True), ("57P01", True), ("57014", False), ("40001", False), ("23505", False)],
)
def test_of_what_the_server_refuses_it_is_known_whether_it_takes_no_writes(state: str, says_so: bool) -> None:
    error = OperationalError("no")
    error.__cause__ = psycopg.errors.lookup(state)("no")
    assert unavailable.takes_no_writes(error) is says_so
