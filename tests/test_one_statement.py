"""A commit that is one statement of PostgreSQL writes all or nothing, whatever has happened to its session meanwhile.

The tests of the journals, of runs that die and of workers that are stopped apply to these commits as to all others,
and `test_whole_commits.py` to those of SQLite too. Here are those that need two connections to a PostgreSQL of their
own.
"""

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from django.db import DataError, connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from agentstate.durable.port import JournalUnavailable, LeaseLost
from agentstate.durable.run_end import NothingToDo
from benchmarks.wire import counting
from sessions_app import actions
from sessions_app.actions.base import commit
from sessions_app.models import AgentDefinition, ModelCall, Session
from sessions_app.runtime import leases
from sessions_app.runtime.journal import OrmJournal
from sessions_app.runtime.own_agents import OwnAgents
from tests.adapters import OrmAdapter
from tests.builders import SYSTEM
from tests.databases import connected
from tests.test_journal_contract import AT, DONE, begun, checkpoint, end, pay, reflecting, reply, unread
from tests.test_whole_commits import done, noted_transactions, rows, statuses
from tools.services import wait_for

pytestmark = pytest.mark.slow
Json = Any


@pytest.fixture(scope="module")
def own_database(migrated_postgres_url: str, django_db_blocker: Any) -> Iterator[str]:
    with django_db_blocker.unblock(), connected(migrated_postgres_url):
        yield migrated_postgres_url


@pytest.fixture(autouse=True)
def _use_it(own_database: str, django_db_blocker: Any) -> Iterator[None]:
    with django_db_blocker.unblock():
        yield


@pytest.fixture
def transactions(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    return noted_transactions(monkeypatch)


def while_it_waits(session: OrmAdapter, change: dict[str, Json], write: Callable[[], Any]) -> Any:
    """Another connection changes the session's row, and commits that when `write` waits for its lock."""
    other = connection.copy()
    try:
        with other.cursor() as cursor:
            cursor.execute("BEGIN")
            sets = ", ".join(f"{name} = %s" for name in change)
            cursor.execute(
                f"UPDATE sessions_app_session SET {sets} WHERE id = %s", [*change.values(), session.pk]
            )
            pid = connection.connection.info.backend_pid

            def waits() -> bool:
                cursor.execute("SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = %s", [pid])
                return bool(cursor.fetchone()[0])

            def release() -> None:
                try:
                    wait_for(waits, "the commit to wait for the row")
                finally:
                    cursor.execute("COMMIT")

            other.inc_thread_sharing()
            releasing = threading.Thread(target=release)
            releasing.start()
            try:
                return write()
            finally:
                releasing.join()
    finally:
        other.close()


def test_a_step_is_two_commits_of_one_round_trip_each(
    own_database: str, transactions: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # `connected` leaves out the options of the address, and the proxy reads what is not encrypted.
    monkeypatch.setenv("PGSSLMODE", "disable")
    monkeypatch.setenv("PGGSSENCMODE", "disable")
    session = OrmAdapter()
    with counting(own_database) as (url, counts), connected(url):
        journal = begun(session)
        transactions.clear()
        sent = []
        for step in range(1, 10):
            before = (counts.round_trips, counts.commits)
            answer = journal.reply(
                reply("Paying", calls=(pay(step),), start_calls=True),
                checkpoint("step", f"said {step}", step=step),
            )
            journal.finish_call(answer.calls[0].position, done("paid"))
            sent.append((counts.round_trips - before[0], counts.commits - before[1]))
    # Between them each of the two statements is planned, which is one round trip more, once.
    assert (sent[0], sent[6:]) == ((2, 2), [(2, 2)] * 3)
    assert [commits for _, commits in sent] == [2] * 9
    assert sum(round_trips for round_trips, _ in sent) == 9 * 2 + 2
    assert statuses(session) == ["done"] * 9
    assert transactions == []


def test_a_claim_that_ends_while_a_commit_waits_for_the_row_writes_nothing() -> None:
    session = OrmAdapter()
    journal = begun(session)
    answer = journal.reply(reply(calls=(pay(1),), start_calls=True))
    epoch = session.fresh().epoch
    position = answer.calls[0].position
    before = rows(session)
    for write in (
        lambda: journal.finish_call(position, done("paid")),
        lambda: journal.start_call(position, sent=None, at=AT),
        lambda: journal.plan([pay(2)]),
        lambda: journal.checkpoint(checkpoint("step", "late", step=1, state={"k": {"set": 1}})),
        lambda: journal.reply(reply("late", calls=(pay(2),)), checkpoint("step", "late", step=1)),
    ):
        with pytest.raises(LeaseLost):
            while_it_waits(session, {"epoch": epoch + 1}, write)
        Session.objects.filter(pk=session.pk).update(epoch=epoch)
        assert rows(session) == before


def ended(session: OrmAdapter) -> Any:
    journal = reflecting(session)
    return lambda: end(journal)


def nothing_to_do(session: OrmAdapter) -> Any:
    journal = begun(session)
    return lambda: journal.end_run(NothingToDo(), DONE)


@pytest.mark.parametrize("ending", [ended, nothing_to_do])
def test_a_message_that_is_sent_while_the_end_of_the_turn_waits_for_the_row_begins_the_next_turn(
    own_database: str, ending: Callable[[OrmAdapter], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    session = OrmAdapter()
    write = ending(session)
    is_sent = threading.Event()

    def somebody_waits() -> bool:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT EXISTS (SELECT 1 FROM pg_stat_activity "
                "WHERE wait_event_type = 'Lock' AND datname = current_database())"
            )
            return bool(cursor.fetchone()[0])

    def commit_late(*arguments: Any, **options: Any) -> Any:
        is_sent.set()
        wait_for(somebody_waits, "the end of the turn to wait for the row")
        return commit(*arguments, **options)

    def send() -> None:
        with connected(own_database):
            actions.send_message(actor=SYSTEM, session_id=session.pk, text="One more thing")

    monkeypatch.setattr("sessions_app.actions.messages.commit", commit_late)
    sending = threading.Thread(target=send)
    sending.start()
    assert is_sent.wait(10)
    try:
        write()
    finally:
        sending.join()
    row = session.fresh()
    assert (row.status, row.phase, row.previous_phase) == ("queued", "planning", "done")
    assert row.next_run_at is not None
    assert unread(session.open().load()) == ["One more thing"]


@pytest.mark.parametrize(
    "change",
    [{"stop_request": "pause"}, {"breakpoints": '[{"number": 1, "tool": "pay"}]'}],
    ids=["a stop request", "a breakpoint"],
)
def test_what_people_ask_while_the_reply_waits_for_the_row_comes_before_its_calls(
    change: dict[str, Json], transactions: list[str]
) -> None:
    session = OrmAdapter()
    journal = begun(session)
    transactions.clear()
    answer = while_it_waits(
        session, change, lambda: journal.reply(reply(calls=(pay(1), pay(2)), start_calls=True))
    )
    assert statuses(session) == ["planned", "planned"]
    assert [call.status for call in answer.calls] == ["planned", "planned"]
    assert transactions == ["transaction"]
    assert ModelCall.objects.filter(branch__session_id=session.pk).count() == 1


def test_a_value_that_its_column_does_not_hold_is_refused_and_not_cut_off() -> None:
    session = OrmAdapter()
    journal = begun(session)
    before = rows(session)
    with pytest.raises(DataError):
        journal.reply(replace(reply("Hello"), name="n" * 101))
    assert rows(session) == before
    assert journal.reply(reply("Hello")).positions


def test_a_connection_that_the_server_has_closed_is_replaced_after_the_commit_that_it_failed() -> None:
    session = OrmAdapter()
    journal = begun(session)
    assert isinstance(journal, OrmJournal)
    planned = journal.reply(reply(calls=(pay(1),)))
    before = rows(session)
    other = connection.copy()
    try:
        with other.cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(%s, 10000)", [connection.connection.info.backend_pid])
    finally:
        other.close()
    position = planned.calls[0].position
    with pytest.raises(JournalUnavailable):
        journal.start_call(position, sent=None, at=AT)
    assert rows(session) == before
    journal.start_call(position, sent=None, at=AT)
    assert statuses(session) == ["started"]


def planned_statements() -> list[tuple[str, int, int]]:
    """The commits of a reply that the server has prepared for this connection: the name of each, how often it was
    executed by the one plan that fits all values, and how often the server made a plan for the values given.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT name, generic_plans, custom_plans FROM pg_prepared_statements"
            " WHERE statement LIKE 'WITH fence%%INSERT INTO \"sessions_app_modelcall\"%%'",
            [],
        )
        return list(cursor.fetchall())


def test_the_server_parses_the_commit_of_a_reply_once_for_a_connection_whatever_its_numbers() -> None:
    session = OrmAdapter()
    journal = begun(session)
    Session.objects.filter(pk=session.pk).update(position=32_750)
    before = {name: counts for name, *counts in planned_statements()}  # of other tests on this connection
    for tokens in (0, 5, 40_000, 3_000_000, 7, 8, 90_000, 1, 2, 3):
        journal.reply(reply("Hello", prompt_tokens=tokens))
    now = {name: counts for name, *counts in planned_statements()}
    [name] = [name for name, counts in now.items() if counts != before.get(name)]
    executed_before, planned_before = before.get(name, (0, 0))
    executed, planned_again = now[name]
    assert executed - executed_before >= 6
    assert planned_again == planned_before
    stored = ModelCall.objects.filter(branch__session_id=session.pk).order_by("position")
    assert [*stored.values_list("prompt_tokens", flat=True)][2:4] == [40_000, 3_000_000]


def test_a_column_that_an_upgrade_adds_does_not_stop_a_run_whose_commits_are_planned() -> None:
    session = OrmAdapter()
    journal = begun(session)
    for _ in range(10):
        journal.reply(reply("Hello"))
    assert planned_statements()
    with connection.cursor() as cursor:
        for table in ("sessions_app_session", "sessions_app_modelcall"):
            cursor.execute(f"ALTER TABLE {table} ADD COLUMN added integer DEFAULT 1")
    try:
        assert journal.reply(reply("Hello")).positions
    finally:
        with connection.cursor() as cursor:
            for table in ("sessions_app_session", "sessions_app_modelcall"):
                cursor.execute(f"ALTER TABLE {table} DROP COLUMN added")
    assert journal.reply(reply("Hello")).positions
    assert ModelCall.objects.filter(branch__session_id=session.pk).count() == 12


def test_a_due_session_is_claimed_by_one_statement_and_once() -> None:
    session = OrmAdapter()
    now = timezone.now()
    Session.objects.filter(pk=session.pk).update(status="queued", next_run_at=now, definition="d2")
    with CaptureQueriesContext(connection) as sent:
        claim = leases.claim(session.pk, "host:1", now, own=OwnAgents(["contract", "another"], ["d1", "d2"]))
    assert len(sent) == 1
    row = session.fresh()
    assert claim is not None
    assert (claim.epoch, claim.attempt, claim.agent, claim.lease_end) == (
        1,
        1,
        "contract",
        row.lease_expires_at,
    )
    assert (row.status, row.worker, row.epoch, row.attempt, row.next_run_at) == (
        "running",
        "host:1",
        1,
        1,
        None,
    )
    assert leases.claim(session.pk, "host:2", now) is None
    assert session.fresh().worker == "host:1"


def test_a_due_session_whose_agent_another_worker_has_is_left_to_it() -> None:
    session = OrmAdapter()
    now = timezone.now()
    Session.objects.filter(pk=session.pk).update(status="queued", next_run_at=now)
    had = AgentDefinition.objects.create(agent="contract", definition="d1", beat_at=now)
    assert leases.claim(session.pk, "host:1", now, own=OwnAgents([], [])) is None
    assert session.fresh().status == "queued"
    had.delete()
    assert leases.claim(session.pk, "host:1", now, own=OwnAgents([], [])) is not None
