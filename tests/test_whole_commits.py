"""A commit that is made at once writes all or nothing, on SQLite and PostgreSQL, and leaves no transaction behind.

`test_one_statement.py` has the tests that need two connections to PostgreSQL.
"""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from uuid import uuid4

import pytest
from django.db import DEFAULT_DB_ALIAS, IntegrityError, connection, connections
from django.db.models import F

from agentstate.durable.port import JournalUnavailable, LeaseLost
from agentstate.durable.records import CallEnd, NewCall
from agentstate.durable.run_end import NothingToDo
from agentstate.names import CallState
from agentstate.sqlite.base import Cursor
from sessions_app.models import Checkpoint, Message, ModelCall, Session, StateValue, ToolCall
from sessions_app.runtime.commits import FencedCommits
from tests.adapters import OrmAdapter
from tests.test_journal_contract import AT, DONE, begun, checkpoint, pay, reply

pytestmark = pytest.mark.slow
Json = Any
TABLES: tuple[Any, ...] = (Message, ModelCall, ToolCall, Checkpoint, StateValue)
TABLES_OF_A_REPLY = ("message", "statevalue", "checkpoint", "modelcall", "toolcall")
on_sqlite = pytest.mark.parametrize("own_database", ["sqlite"], indirect=True)


@pytest.fixture(autouse=True)
def _use_it(own_database: str, django_db_blocker: Any) -> Iterator[None]:
    with django_db_blocker.unblock():
        yield


@pytest.fixture
def transactions(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    return noted_transactions(monkeypatch)


def noted_transactions(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Notes each commit that is not made at once, from then on."""
    begun_ones: list[str] = []
    transaction = FencedCommits._transaction

    def noted(journal: FencedCommits) -> Any:
        begun_ones.append("transaction")
        return transaction(journal)

    monkeypatch.setattr(FencedCommits, "_transaction", noted)
    return begun_ones


def rows(session: OrmAdapter) -> dict[str, list[dict[str, Json]]]:
    """What is stored of the session."""
    stored = {
        model.__name__: list(model.objects.filter(branch__session_id=session.pk).order_by("pk").values())
        for model in TABLES
    }
    return {**stored, "Session": list(Session.objects.filter(pk=session.pk).values())}


def statuses(session: OrmAdapter) -> list[str]:
    calls = ToolCall.objects.filter(branch__session_id=session.pk)
    return list(calls.order_by("position").values_list("status", flat=True))


def done(result: Json) -> CallEnd:
    return CallEnd(CallState.DONE, AT, result)


class Statements:
    """Notes the statements of this connection, and interrupts the one of that number, before it or behind it."""

    def __init__(
        self, interrupted: int = 0, error: BaseException | None = None, *, behind: bool = False
    ) -> None:
        self.sent: list[str] = []
        self.interrupted, self.error, self.behind = interrupted, error, behind

    @contextmanager
    def watched(self) -> Iterator[None]:
        """At the driver's cursor: with a wrapper of Django's, statements go another way."""
        original = Cursor.execute

        def execute(cursor: Cursor, sql: str, values: Any = None) -> Any:
            return self.passed(partial(original, cursor), sql, values)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Cursor, "execute", execute)
            yield

    def passed(self, execute: Callable[..., Any], sql: str, *rest: Any) -> Any:
        self.sent.append(sql)
        strikes = self.error is not None and len(self.sent) == self.interrupted
        if strikes and not self.behind:
            raise self.error  # type: ignore[misc]
        answer = execute(sql, *rest)
        if strikes:
            raise self.error  # type: ignore[misc]
        return answer


def step_of(journal: Any, number: int) -> None:
    answer = journal.reply(
        reply("Paying", calls=(pay(number),), start_calls=True),
        checkpoint("step", f"said {number}", step=number, state={"k": {"set": number}}),
    )
    journal.finish_call(answer.calls[0].position, done("paid"))


@on_sqlite
def test_on_sqlite_a_commit_is_a_transaction_with_one_statement_for_each_table(
    transactions: list[str],
) -> None:
    session = OrmAdapter()
    journal = begun(session)
    transactions.clear()
    statements = Statements()
    with statements.watched():
        step_of(journal, 1)
    assert [" ".join(sql.split()[:3]).split(" (")[0] for sql in statements.sent] == [
        "BEGIN IMMEDIATE",
        'UPDATE "sessions_app_session" SET',
        *[f'INSERT INTO "sessions_app_{table}"' for table in TABLES_OF_A_REPLY],
        "COMMIT",
        "BEGIN IMMEDIATE",
        'UPDATE "sessions_app_session" SET',
        'UPDATE "sessions_app_toolcall" SET',
        "COMMIT",
    ]
    assert transactions == []
    assert statuses(session) == ["done"]


@on_sqlite
@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(1), MemoryError()], ids=repr)
@pytest.mark.parametrize("behind", [False, True], ids=["before", "behind"])
def test_an_interruption_at_any_statement_writes_nothing_and_leaves_no_transaction(
    error: BaseException, behind: bool
) -> None:
    undisturbed, journal = Statements(), begun(OrmAdapter())
    with undisturbed.watched():
        step_of(journal, 1)
    last = undisturbed.sent.index("COMMIT") + 1
    assert last == 8
    for number in range(1, last + 1):
        session = OrmAdapter()
        journal = begun(session)
        before = rows(session)
        with (
            pytest.raises(type(error)),
            Statements(number, error, behind=behind).watched(),
        ):
            step_of(journal, 1)
        assert not connection.connection.in_transaction
        is_committed = behind and number == last
        assert (rows(session) != before) is is_committed
        if not is_committed:
            step_of(journal, 1)
            assert statuses(session) == ["done"]


@on_sqlite
def test_a_row_that_the_database_refuses_leaves_nothing_of_its_commit() -> None:
    session = OrmAdapter()
    journal = begun(session)
    answer = journal.reply(reply(calls=(pay(1),), start_calls=True))
    before = rows(session)
    with pytest.raises(IntegrityError):
        journal.finish_call(answer.calls[0].position, CallEnd("no such status", AT))  # type: ignore[arg-type]
    assert rows(session) == before
    journal.finish_call(answer.calls[0].position, done("paid"))
    assert statuses(session) == ["done"]


@on_sqlite
@pytest.mark.parametrize(
    "error", [sqlite3.OperationalError("database is locked"), KeyboardInterrupt()], ids=repr
)
def test_where_the_rollback_fails_too_the_connection_is_closed_and_the_first_error_told(
    error: BaseException,
) -> None:
    session = OrmAdapter()
    journal = begun(session)
    before = rows(session)

    class Broken:
        """The connection of the driver, on which nothing can be rolled back."""

        def __init__(self, driver: Any) -> None:
            self.driver = driver

        def __getattr__(self, name: str) -> Any:
            return getattr(self.driver, name)

        def rollback(self) -> None:
            raise MemoryError

    database = connections[DEFAULT_DB_ALIAS]
    database.connection = Broken(database.connection)
    expected = JournalUnavailable if isinstance(error, sqlite3.Error) else type(error)
    with pytest.raises(expected), Statements(4, error).watched():
        step_of(journal, 1)
    assert database.connection is None
    assert rows(session) == before
    step_of(journal, 1)
    assert statuses(session) == ["done"]


def test_a_claim_that_is_over_writes_nothing() -> None:
    session = OrmAdapter()
    journal = begun(session)
    answer = journal.reply(reply(calls=(pay(1),), start_calls=True))
    Session.objects.filter(pk=session.pk).update(epoch=F("epoch") + 1)
    before = rows(session)
    for write in (
        lambda: journal.finish_call(answer.calls[0].position, done("paid")),
        lambda: journal.start_call(answer.calls[0].position, sent=None, at=AT),
        lambda: journal.plan([pay(2)]),
        lambda: journal.checkpoint(checkpoint("step", "late", step=1, state={"k": {"set": 1}})),
        lambda: journal.reply(reply("late", calls=(pay(2),)), checkpoint("step", "late", step=1)),
    ):
        with pytest.raises(LeaseLost):
            write()
        assert rows(session) == before


@pytest.mark.parametrize(
    "change",
    [{"stop_request": "pause"}, {"breakpoints": [{"number": 1, "tool": "pay"}]}, {"line": uuid4()}],
    ids=["a stop request", "a breakpoint", "a fork"],
)
def test_what_people_ask_before_the_reply_is_stored_comes_before_its_calls(
    change: dict[str, Json], transactions: list[str]
) -> None:
    session = OrmAdapter()
    journal = begun(session)
    transactions.clear()
    Session.objects.filter(pk=session.pk).update(**change)
    answer = journal.reply(reply(calls=(pay(1), pay(2)), start_calls=True))
    assert statuses(session) == ["planned", "planned"]
    assert [call.status for call in answer.calls] == ["planned", "planned"]
    assert transactions == ["transaction"]
    assert ModelCall.objects.filter(branch__session_id=session.pk).count() == 1


def test_positions_that_somebody_else_takes_meanwhile_are_left_to_them(transactions: list[str]) -> None:
    session = OrmAdapter()
    journal = begun(session)
    journal.checkpoint(checkpoint("step", step=1, state={"k": {"set": 1}}, tools=("pay",)))
    transactions.clear()
    position = session.fresh().position
    Session.objects.filter(pk=session.pk).update(position=F("position") + 3)
    answer = journal.reply(
        reply("Paying", calls=(pay(1),), start_calls=True),
        checkpoint("step", step=2, state={"k": {"set": 2}}, tools=("pay", "look")),
    )
    assert transactions == ["transaction"]
    call = ToolCall.objects.get(branch__session_id=session.pk)
    assert (call.position, call.idempotency_key) == (position + 7, f"{session.pk}-{position + 7}")
    assert answer.calls[0].position == position + 7
    last = Checkpoint.objects.filter(branch__session_id=session.pk).latest("position")
    assert (last.position, last.keys, last.tools) == (position + 4, {"k": position + 4}, ["pay", "look"])
    assert statuses(session) == ["started"]
    # From here on it knows again.
    journal.finish_call(call.position, done("paid"))
    journal.reply(reply("Done"), checkpoint("step", step=3, tools=("pay", "look")))
    assert transactions == ["transaction"]


def test_unread_messages_are_read_by_the_checkpoint_of_the_next_step(transactions: list[str]) -> None:
    session = OrmAdapter()
    journal = begun(session)
    session.say("And now?")
    transactions.clear()
    committed = journal.checkpoint(checkpoint("step", step=1))
    assert [message.body["content"] for message in committed.read] == [[{"text": "And now?"}]]
    assert transactions == ["transaction"]


def test_a_message_that_is_sent_while_a_run_finds_nothing_to_do_begins_the_next_turn() -> None:
    session = OrmAdapter()
    journal = begun(session)
    session.say("And now?")
    assert journal.end_run(NothingToDo(), DONE) == "queued"
    row = session.fresh()
    assert (row.status, row.phase, row.previous_phase) == ("queued", "planning", "done")
    assert row.next_run_at is not None


def test_a_run_that_finds_nothing_to_do_ends_its_turn() -> None:
    session = OrmAdapter()
    journal = begun(session)
    assert journal.end_run(NothingToDo(), DONE) == "idle"
    row = session.fresh()
    assert (row.status, row.phase, row.next_run_at) == ("idle", "done", None)


def test_the_end_of_a_call_that_is_not_there_writes_nothing() -> None:
    session = OrmAdapter()
    journal = begun(session)
    before = rows(session)
    with pytest.raises(LookupError):
        journal.finish_call(99, done("paid"))
    assert rows(session) == before


def test_a_reply_of_very_many_calls_is_stored_too(transactions: list[str]) -> None:
    session = OrmAdapter()
    journal = begun(session)
    transactions.clear()
    calls = tuple(NewCall(f"c{number}", "pay", {"n": number}) for number in range(250))
    journal.reply(reply(calls=calls, start_calls=True))
    assert statuses(session) == ["started"] * 250
    assert transactions == ["transaction"]
