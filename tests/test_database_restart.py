"""PostgreSQL goes away while a session runs: what a model has replied, and what a tool has returned, is kept."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from itertools import count
from threading import Barrier, Event
from types import SimpleNamespace
from typing import Annotated, Any

import psycopg
import pytest
from django.db import OperationalError
from django.db.models import F
from haystack.components.agents import Agent
from haystack.components.agents.state import State
from haystack.components.generators.chat import MockChatGenerator
from haystack.dataclasses import ChatMessage, ToolCall
from haystack.tools import tool
from pytest_django.plugin import DjangoDbBlocker

from agentstate.postgresql import pool
from sessions_app import actions
from sessions_app.models import CallStatus, ModelCall, Session
from sessions_app.models import ToolCall as Call
from sessions_app.runtime import commits
from sessions_app.runtime.statements import Writes
from sessions_app.runtime.whole_commits import fence_and_write
from tests import driving
from tests.builders import SYSTEM
from tests.databases import NewDatabases, connected, own_pools
from tests.driving import Desk
from tests.sample_agents import effect, effects
from tools.services import Postgres

pytestmark = pytest.mark.slow
Happen = Callable[[], None]


def nothing() -> None:
    pass


@pytest.fixture
def url(new_database: NewDatabases) -> str:
    return new_database("postgres")


@pytest.fixture(params=[0, 2], ids=["a connection of its own", "a pool"])
def server(
    request: pytest.FixtureRequest,
    url: str,
    postgres_server: Postgres,
    django_db_blocker: DjangoDbBlocker,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Postgres]:
    """A server that nothing else uses meanwhile, with a database on which this thread works."""
    monkeypatch.setattr(commits, "RETRY_SECONDS", 0.05)
    monkeypatch.setattr(pool, "WAIT_SECONDS", 1.0)
    with django_db_blocker.unblock(), own_pools(), connected(url, pool=request.param):
        yield postgres_server
    if postgres_server.pid is None:
        postgres_server.start()


@pytest.fixture
def desk(server: Postgres) -> Iterator[Desk]:
    with driving.desk() as desk:
        yield desk


def begun(
    desk: Desk,
    *,
    payments: int = 1,
    thinks: Happen = nothing,
    pays: Happen = nothing,
    run_async: bool | None = None,
    **options: Any,
) -> tuple[Session, list[int]]:
    """A session whose model asks for so many payments and then answers, with a list of what the model was asked.

    :param thinks: Called each time that the model is asked, and `pays` when the tool has paid.
    """
    asked: list[int] = []

    @tool
    def pay(order: Annotated[str, "order"]) -> str:
        """Pays."""
        effect(f"paid {order}")
        pays()
        return f"paid {order}"

    def think(messages: list[ChatMessage], tools: Any = None) -> ChatMessage:
        asked.append(len(messages))
        thinks()
        if len(messages) > 1:
            return ChatMessage.from_assistant("Done.")
        calls = [ToolCall("pay", {"order": f"A{n}"}, id=f"p{n}") for n in range(1, payments + 1)]
        return ChatMessage.from_assistant("I pay.", tool_calls=calls)

    desk.agent(
        lambda: Agent(chat_generator=MockChatGenerator(response_fn=think), tools=[pay], **options),
        run_async=run_async,
    )
    return desk.start(), asked


def restarting(server: Postgres) -> Happen:
    def restart() -> None:
        server.stop()
        server.start()

    return restart


@pytest.mark.parametrize("run_async", [None, True], ids=["sync", "async"])
def test_nothing_is_paid_again_for_a_restart_while_the_model_is_asked_and_the_tool_runs(
    server: Postgres, desk: Desk, run_async: bool | None
) -> None:
    restart = restarting(server)
    session, asked = begun(desk, thinks=restart, pays=restart, run_async=run_async)
    assert desk.drive(session) == "idle"
    assert (asked, effects) == ([1, 3], ["paid A1"])
    [call] = desk.calls(session)
    assert (call.status, call.result, call.attempt) == (CallStatus.DONE, "paid A1", 1)
    assert desk.fresh(session).final_answer == "Done."


def test_a_reply_is_stored_also_if_somebody_has_changed_the_session_meanwhile(
    server: Postgres, desk: Desk
) -> None:
    def change_and_restart() -> None:
        actions.note(actor=SYSTEM, session_id=session.pk, text="It takes long.")
        restarting(server)()

    session, asked = begun(desk, thinks=change_and_restart)
    assert desk.drive(session) == "idle"
    assert (asked, effects) == ([1, 3], ["paid A1"])


def test_a_session_that_another_worker_has_taken_over_is_left_to_it(
    server: Postgres, url: str, desk: Desk
) -> None:
    def take_over_and_restart() -> None:
        with psycopg.connect(url) as other:
            other.execute("UPDATE sessions_app_session SET epoch = epoch + 1")
        restarting(server)()

    session, _ = begun(desk, pays=take_over_and_restart)
    assert desk.drive(session) == "lost"
    assert Call.objects.get().status == CallStatus.STARTED


def test_a_server_that_stays_away_for_a_lease_leaves_the_session_to_the_next_claim(
    server: Postgres, desk: Desk, settings: Any
) -> None:
    session, asked = begun(desk, pays=server.stop)
    settings.AGENTSTATE_LEASE_SECONDS = 0.3
    assert desk.drive(session) == "lost"
    server.start()
    assert desk.drive(session) == "waiting"
    assert (desk.fresh(session).waiting_for, asked, effects) == ("doubt", [1], ["paid A1"])


@pytest.mark.parametrize("run_async", [None, True], ids=["sync", "async"])
def test_the_parallel_calls_of_a_step_wait_for_one_lease_together(
    server: Postgres, desk: Desk, settings: Any, run_async: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts = count()
    monkeypatch.setattr(commits, "time", SimpleNamespace(monotonic=lambda: next(attempts)))
    settings.AGENTSTATE_LEASE_SECONDS = 3
    together = Barrier(4, action=server.stop)

    def meet() -> None:
        together.wait()

    session, _ = begun(desk, payments=4, pays=meet, run_async=run_async)
    assert desk.drive(session) == "lost"
    # Four of the first one, and one of each other.
    assert next(attempts) == 7
    server.start()
    assert [call.status for call in desk.calls(session)] == [CallStatus.STARTED] * 4


class AsksTwice:
    """A hook that asks a model twice at the same time, and does something else meanwhile."""

    def __init__(self, chat_generator: Any, meanwhile: Happen) -> None:
        self.chat_generator = chat_generator
        self.meanwhile = meanwhile

    def run(self, state: State) -> None:
        with ThreadPoolExecutor(2) as threads:
            asked = [
                threads.submit(copy_context().run, self.chat_generator.run, [ChatMessage.from_user("Well?")])
                for _ in range(2)
            ]
            self.meanwhile()
        assert all(each.result() for each in asked)


def test_replies_that_arrive_at_the_same_time_during_a_restart_are_all_stored(
    server: Postgres, desk: Desk
) -> None:
    """The server is started in a thread that stays: it ends with the one that started it."""
    both, restarted = Barrier(3), Event()

    def restart() -> None:
        both.wait()
        restarting(server)()
        restarted.set()

    def judge(messages: list[ChatMessage], tools: Any = None) -> ChatMessage:
        both.wait()
        restarted.wait(30)
        return ChatMessage.from_assistant("Fine.")

    hook = AsksTwice(MockChatGenerator(response_fn=judge), restart)
    session, _ = begun(desk, hooks={"before_run": [hook]})
    assert desk.drive(session) == "idle"
    assert ModelCall.objects.exclude(name="agent").count() == 2


@pytest.mark.parametrize("state, is_tried_again", [("53300", True), ("25006", True), ("54000", False)])
def test_what_the_server_refuses_for_good_is_not_tried_again(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, state: str, is_tried_again: bool
) -> None:
    refused: list[str] = []

    def refuse(*args: Any) -> Any:
        if not refused and any(change.values.get("result") for change in args[4].updates):
            refused.append(state)
            raise OperationalError("no") from psycopg.errors.lookup(state)("no")
        return fence_and_write(*args)

    monkeypatch.setattr(commits, "fence_and_write", refuse)
    session, _ = begun(desk)
    assert desk.drive(session) == ("idle" if is_tried_again else "lost")


def fails_behind(monkeypatch: pytest.MonkeyPatch, is_it: Callable[[Writes], bool]) -> None:
    """The server stores the first commit of which that is true, and goes away before it says so."""
    failed: list[Writes] = []

    def store_and_fail(*args: Any) -> Any:
        written = fence_and_write(*args)
        if not failed and is_it(args[4]):
            failed.append(args[4])
            raise OperationalError("server closed the connection unexpectedly")
        return written

    monkeypatch.setattr(commits, "fence_and_write", store_and_fail)


def test_a_result_that_was_stored_before_the_server_could_say_so_is_stored_again(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails_behind(monkeypatch, lambda writes: any(change.values.get("result") for change in writes.updates))
    session, asked = begun(desk)
    assert desk.drive(session) == "idle"
    assert (asked, effects) == ([1, 3], ["paid A1"])
    assert [call.result for call in desk.calls(session)] == ["paid A1"]


def test_a_reply_that_was_stored_before_the_server_could_say_so_is_not_stored_again(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its call is in doubt, since it was stored as started with the reply."""
    fails_behind(monkeypatch, lambda writes: any(model is ModelCall for model, *_ in writes.inserts))
    session, asked = begun(desk)
    assert desk.drive(session) == "lost"
    Session.objects.update(lease_expires_at=F("created_at"))
    assert desk.run(session).waiting_for == "doubt"
    assert (asked, effects) == ([1], [])
    assert ModelCall.objects.count() == 1
