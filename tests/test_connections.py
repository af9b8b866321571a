"""A process uses a limited number of PostgreSQL connections, and a session that waits holds none of them."""

import gc
import os
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext, suppress
from datetime import timedelta
from typing import Any

import pytest
from django.core.checks import WARNING, CheckMessage, run_checks
from django.db import InterfaceError, OperationalError, connection, connections, transaction
from django.utils import timezone
from haystack.components.agents import Agent
from haystack.components.generators.chat import MockChatGenerator
from haystack.dataclasses import ChatMessage, ToolCall
from haystack.tools import Tool
from pytest_django.plugin import DjangoDbBlocker

from agentstate.postgresql import base, pool
from sessions_app.finding import search_follower
from sessions_app.models import RegisteredAgent, Session, Worker
from sessions_app.runtime.publisher import Publisher
from tests import sample_agents
from tests.databases import backend, connected, in_use, own_pools, refusing_after
from tests.driving import Desk, desk
from tools import services

SESSIONS = 8
LIMIT = 2


@pytest.fixture
def url(migrated_postgres_url: str, django_db_blocker: Any) -> Iterator[str]:
    """An empty database that this thread works on. At the end no connection of a pool is open."""
    with django_db_blocker.unblock(), connected(migrated_postgres_url):
        try:
            with own_pools():
                yield migrated_postgres_url
        finally:
            with connection.cursor() as cursor:
                cursor.execute("TRUNCATE sessions_app_session, sessions_app_worker CASCADE")
                cursor.execute("TRUNCATE sessions_app_registeredagent, sessions_app_agentdefinition")
                cursor.execute("DELETE FROM sessions_app_search_mark WHERE name = %s", [search_follower.NAME])


class Meeting:
    """A place where all sessions wait for each other. When they are all there, somebody looks at the pool."""

    def __init__(self) -> None:
        self.seen: list[int] = []
        self._barrier = threading.Barrier(SESSIONS, action=lambda: self.seen.append(in_use()))

    def wait(self) -> None:
        self._barrier.wait(services.START_SECONDS)


def agent_that_waits(at_model: Meeting, at_tool: Meeting) -> Agent:
    def reply(messages: list[ChatMessage]) -> ChatMessage:
        at_model.wait()
        if messages[-1].tool_call_results:
            return ChatMessage.from_assistant("done")
        return ChatMessage.from_assistant(tool_calls=[ToolCall("look", {}, id="1")])

    def look() -> str:
        at_tool.wait()
        return "looked"

    tool = Tool("look", "Looks.", {"type": "object", "properties": {}}, look)
    return Agent(chat_generator=MockChatGenerator(response_fn=reply), tools=[tool])


@pytest.mark.slow
def test_sessions_that_wait_for_their_model_or_a_tool_hold_no_connection(url: str) -> None:
    at_model, at_tool = Meeting(), Meeting()

    def drive(made: Desk, session: Session) -> str:
        with connected(url, pool=LIMIT):
            return made.drive(session)

    with desk() as made, ThreadPoolExecutor(SESSIONS) as threads:
        made.agent(lambda: agent_that_waits(at_model, at_tool))
        sessions = [made.start() for _ in range(SESSIONS)]
        ended = list(threads.map(lambda session: drive(made, session), sessions))
        assert ended == ["idle"] * SESSIONS
        assert [made.texts(session)[-1] for session in sessions] == [("assistant", "done")] * SESSIONS
    assert (at_model.seen, at_tool.seen) == ([0, 0], [0])


def test_a_thread_that_finds_no_connection_free_waits_and_is_then_refused(url: str) -> None:
    def query() -> int:
        with connected(url, pool=1):
            return Session.objects.count()

    with ThreadPoolExecutor(1) as thread, connected(url, pool=1):
        assert Session.objects.count() == 0
        with refusing_after(0.1), pytest.raises(OperationalError, match="couldn't get a connection"):
            thread.submit(query).result()
        connection.close()
        assert thread.submit(query).result() == 0


def test_a_connection_that_the_server_has_ended_is_not_handed_out_again(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with connected(url, pool=1):
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            (first,) = cursor.fetchone()
        connection.close()
        # As if it had been idle for a while.
        monkeypatch.setattr(pool, "ALIVE_SECONDS", -1.0)
        with connected(url), connection.cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(%s, 5000)", [first])
            assert cursor.fetchone() == (True,)
        assert Session.objects.count() == 0
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            assert cursor.fetchone() != (first,)


def test_a_worker_that_has_published_its_agents_leaves_its_only_connection_to_its_sessions(url: str) -> None:
    """Its main thread does nothing else on the database, for as long as the worker lives."""
    with desk() as made, connected(url, pool=1):
        made.agent(sample_agents.refunds)
        session = made.start()
        Publisher().beat()
        assert RegisteredAgent.objects.exists()
        connection.close()
        Publisher(published=True).beat()
        assert in_use() == 0

        def drive() -> str:
            with connected(url, pool=1):
                return made.drive(session)

        with ThreadPoolExecutor(1) as thread, refusing_after(0.1):
            assert thread.submit(drive).result() == "idle"


def backends_of_pool(url: str, size: int) -> list[int]:
    """The server's processes of so many connections that threads use at once, and that are idle in the pool then."""
    all_connected = threading.Barrier(size)

    def query(_: int) -> int:
        with connected(url, pool=size), connection.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            all_connected.wait(services.START_SECONDS)
            (backend,) = cursor.fetchone()
            return int(backend)

    with ThreadPoolExecutor(size) as threads:
        return [*threads.map(query, range(size))]


def end(url: str, backends: list[int]) -> None:
    """End them, on a connection of its own."""
    ended = "SELECT bool_and(pg_terminate_backend(backend, 5000)) FROM unnest(%s::int[]) AS backend"
    with connected(url), connection.cursor() as cursor:
        cursor.execute(ended, [backends])
        assert cursor.fetchone() == (True,)


def test_when_the_server_has_ended_all_connections_the_next_query_does_not_wait_for_each_of_them(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    backends = backends_of_pool(url, 6)
    assert len({*backends}) == 6
    # As if they had been idle for a while.
    monkeypatch.setattr(pool, "ALIVE_SECONDS", -1.0)
    for _ in range(3):
        end(url, backends)
        # psycopg waits for a second behind the second connection that it finds ended, and for longer behind each other.
        with refusing_after(3.0), connected(url, pool=6):
            assert Session.objects.count() == 0
        ended, backends = backends, backends_of_pool(url, 6)
        assert {*backends}.isdisjoint(ended)


def test_when_the_server_has_ended_one_connection_the_others_are_kept(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = backends_of_pool(url, 3)
    monkeypatch.setattr(pool, "ALIVE_SECONDS", -1.0)
    end(url, before[:1])
    assert {*before} & {*backends_of_pool(url, 3)} == {*before[1:]}


@pytest.mark.parametrize("has_open_cursor", [False, True])
def test_a_connection_that_has_ended_while_it_counted_as_alive_takes_the_others_with_it(
    url: str, has_open_cursor: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "ALIVE_SECONDS", services.START_SECONDS)
    backends = backends_of_pool(url, 4)
    end(url, backends)
    with connected(url, pool=4):
        opened = connection.cursor() if has_open_cursor else None
        with pytest.raises(OperationalError):
            Session.objects.count()
        connection.close()
        assert opened is None or not opened.closed
        for _ in range(4):
            assert Session.objects.count() == 0
            connection.close()


def test_what_is_returned_behind_a_connection_that_has_ended_does_not_count_as_alive(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "ALIVE_SECONDS", services.START_SECONDS)
    backends: list[int] = []
    connected_all, ended, first_is_back = threading.Barrier(4), threading.Event(), threading.Event()

    def hold(number: int) -> None:
        with connected(url, pool=3):
            backends.append(backend())
            connected_all.wait(services.START_SECONDS)
            ended.wait(services.START_SECONDS)
            if number == 0:
                with pytest.raises(OperationalError):
                    Session.objects.count()
                connection.close()
                first_is_back.set()
            first_is_back.wait(services.START_SECONDS)

    with ThreadPoolExecutor(3) as threads:
        holding = [threads.submit(hold, number) for number in range(3)]
        connected_all.wait(services.START_SECONDS)
        end(url, backends)
        ended.set()
        for each in holding:
            each.result()
    for _ in range(3):
        with connected(url, pool=3):
            assert Session.objects.count() == 0


@pytest.fixture
def short_collections() -> Iterator[None]:
    """The collector leaves out what earlier tests have made, as it leaves out what a server has imported: a pool lets
    it rest for nine times as long as it took, and who waits for a connection does so for ten seconds.
    """
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("short_collections")
def test_threads_that_end_without_a_word_take_no_connection_with_them(url: str) -> None:
    with connected(url, pool=2):
        copy = connections["default"].copy
        backends: list[int] = []

        def query() -> None:
            """As a tool does in a thread of its own: nothing closes the connection. The last is in a transaction."""
            connections["default"] = copy()
            backends.append(backend())
            if len(ended) == 4:
                transaction.set_autocommit(False)
                Session.objects.create(agent="nobody's")

        def are_all_back() -> bool:
            gc.collect()  # nothing, if that of the pool collects at this moment
            return in_use() == 0

        ended: list[threading.Thread] = []
        for _ in range(5):
            thread = threading.Thread(target=query)
            thread.start()
            thread.join()
            ended.append(thread)
        assert len(backends) == 5
        services.wait_for(are_all_back, "the connections of the threads to be back")
        assert Session.objects.count() == 0
        connection.close()
        assert in_use() == 0

        def all_at_once() -> None:
            connections["default"] = copy()
            begin.wait(services.START_SECONDS)
            backends.append(backend())

        # Each waits for the threads before it, two at a time, and for 10 seconds at most.
        threads = [threading.Thread(target=all_at_once) for _ in range(16)]
        begin = threading.Barrier(len(threads))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(backends) == 5 + 16


def test_a_connection_that_somebody_can_still_use_is_nobody_elses(url: str) -> None:
    """Another thread goes on with what was opened in one that has ended; two more need the other connection."""
    with connected(url, pool=2):
        wrapper = connections["default"]
        copy = wrapper.copy
        wrapper.inc_thread_sharing()

        def in_a_thread(do: Callable[[], Any]) -> Any:
            with ThreadPoolExecutor(1) as thread:
                return thread.submit(do).result()

        def begin() -> None:
            connections["default"] = wrapper
            Session.objects.count()

        def query() -> int:
            connections["default"] = copy()
            return backend()

        def rows() -> Iterator[Session]:
            connections["default"] = copy()
            found = Session.objects.iterator(chunk_size=1)
            next(found)
            return found

        in_a_thread(begin)
        with transaction.atomic():
            mine = backend()
            for _ in range(3):
                Session.objects.create(agent="of one transaction")
                assert in_a_thread(query) != mine
        wrapper.dec_thread_sharing()
        connection.close()
        left = in_a_thread(rows)
        for _ in range(3):
            assert in_a_thread(query)
        assert len([*left]) == 2
        assert Session.objects.count() == 3


@pytest.mark.parametrize("size", [0, 1])
def test_a_transaction_whose_connection_is_lost_is_told_so_at_once(url: str, size: int) -> None:
    """Nobody waits for another connection to tell it: the only one is taken here."""
    with connected(url, pool=size), ThreadPoolExecutor(1) as other:
        ended = threading.Event()

        def take_the_next() -> int:
            with connected(url, pool=size):
                count = Session.objects.count()
                ended.wait(services.START_SECONDS)
                return count

        @transaction.atomic
        def lose_it() -> None:
            mine = backend()
            waiting.append(other.submit(take_the_next))
            end(url, [mine])
            Session.objects.count()

        waiting: list[Future[int]] = []
        with pytest.raises(OperationalError, match="terminating connection"):
            lose_it()
        ended.set()
        assert waiting[0].result() == 0
        # The thread goes on as before.
        assert connection.get_autocommit()
        with transaction.atomic():
            assert Session.objects.count() == 0


def test_a_server_that_does_not_answer_is_given_up_soon(url: str) -> None:
    def option(given: str) -> dict[str, Any]:
        with connected(f"{url}{given}", pool=1):
            return connection.get_connection_params()

    assert option("").items() >= base.GIVEN_UP.items()
    with socket.create_server(("127.0.0.1", 0)) as mute:
        port = mute.getsockname()[1]
        # Not those five seconds, which a test need not wait.
        silent = f"postgres://nobody@127.0.0.1:{port}/none?connect_timeout=2"
        with connected(silent), pytest.raises(OperationalError, match="timeout"):
            connection.ensure_connection()
    assert int(option("?connect_timeout=7")["connect_timeout"]) == 7


@pytest.mark.slow
def test_who_waits_while_the_server_is_away_is_answered_soon_after_it_is_back(
    monkeypatch: pytest.MonkeyPatch, django_db_blocker: DjangoDbBlocker
) -> None:
    monkeypatch.setattr(pool, "RECONNECT_SECONDS", 0.1)
    waiting = 3

    with services.running_postgres() as server, django_db_blocker.unblock():
        failed = Failures(monkeypatch)

        def query(_: int) -> int:
            with connected(server.url(), pool=waiting), connection.cursor() as cursor:
                cursor.execute("SELECT 1")
                return int(cursor.fetchone()[0])

        server.stop()
        with ThreadPoolExecutor(waiting) as threads:
            answers = [threads.submit(query, number) for number in range(waiting)]
            # Nobody else asks behind that.
            services.wait_for(lambda: failed.number >= 2, "the server to be given up twice")
            server.start()
            assert [answer.result() for answer in answers] == [1] * waiting
        with connected(server.url(), pool=waiting):
            connection.close_pool()  # type: ignore[attr-defined]


class Failures:
    """Counts how often a pool has given up to connect."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.number = 0
        given_up = pool.Pool.reconnect_failed

        def count(failed: pool.Pool) -> None:
            self.number += 1
            given_up(failed)

        monkeypatch.setattr(pool.Pool, "reconnect_failed", count)


def test_a_forked_process_has_a_pool_of_its_own(url: str) -> None:
    with connected(url, pool=2):
        assert Session.objects.count() == 0
        connection.close()
        mine = [*pool._pools.values()]
        child = os.fork()
        if child == 0:
            try:
                known = [*pool._pools.values()]
                count = Session.objects.count()
                os._exit(0 if not known and count == 0 and pool._pools else 1)
            except BaseException:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        # The child has not ended the parent's.
        assert Session.objects.count() == 0
        assert [*pool._pools.values()] == mine


def test_a_forked_process_does_not_end_the_transaction_that_it_was_forked_in(url: str) -> None:
    with connected(url, pool=2):
        with transaction.atomic():
            Session.objects.create(agent="before")
            child = os.fork()
            if child == 0:
                try:
                    connection.close()
                    os._exit(0)
                except BaseException:
                    os._exit(2)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            Session.objects.create(agent="after")
        assert Session.objects.count() == 2


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("error", [None, SystemExit])
def test_a_forked_process_that_leaves_a_transaction_of_its_parent_does_not_end_it(
    url: str, nested: bool, error: type[BaseException] | None
) -> None:
    hooks: list[str] = []
    me = os.getpid()

    def fork_inside() -> int:
        with transaction.atomic():
            Session.objects.create(agent="before")
            transaction.on_commit(lambda: hooks.append("of the parent"))
            with transaction.atomic() if nested else nullcontext():
                child = os.fork()
                if child == 0 and error is not None:
                    raise error
                if child == 0:
                    return 0
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            Session.objects.create(agent="after")
            return child

    with connected(url, pool=2):
        try:
            with suppress(SystemExit):
                fork_inside()
            if os.getpid() != me:
                # It can query the database again, and does not see what is not committed.
                os._exit(0 if Session.objects.count() == 0 and not hooks else 1)
        except BaseException:
            if os.getpid() == me:
                raise
            os._exit(2)
        assert (Session.objects.count(), hooks) == (2, ["of the parent"])


def test_a_forked_process_gets_no_answers_of_the_transaction_that_it_was_forked_in(url: str) -> None:
    queries: list[Callable[[], object]] = [
        Session.objects.count,
        lambda: connection.write_later("DELETE FROM sessions_app_session", []),  # type: ignore[attr-defined]
        transaction.atomic().__enter__,
        lambda: Session.objects.create(agent="of the child"),
    ]
    with connected(url, pool=2):
        with transaction.atomic():
            Session.objects.create(agent="before")
            child = os.fork()
            if child == 0:
                refused = 0
                for query in queries:
                    try:
                        query()
                    except InterfaceError as error:
                        refused += "forked inside of a transaction" in str(error)
                    except BaseException:
                        os._exit(2)
                os._exit(0 if refused == len(queries) else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            assert Session.objects.count() == 1
        assert Session.objects.count() == 1


def compared(*, deploy: bool = False, databases: list[str] | None = None) -> list[CheckMessage]:
    """What `manage.py check` says of the connections."""
    found = run_checks(tags=["database"], include_deployment_checks=deploy, databases=databases)
    return [message for message in found if str(message.id).startswith("agentstate.")]


@pytest.mark.parametrize("deploy, databases", [(False, ["default"]), (True, None), (True, ["default"])])
def test_processes_that_could_exceed_the_servers_connections_are_warned_of_once(
    url: str, settings: Any, deploy: bool, databases: list[str] | None
) -> None:
    with connected(url, pool=10):
        # Of the server's 200, 3 are for superusers.
        settings.AGENTSTATE_PROCESSES = 19
        assert compared(deploy=deploy, databases=databases) == []
        settings.AGENTSTATE_PROCESSES = 20
        (warning,) = compared(deploy=deploy, databases=databases)
        assert warning.id == "agentstate.W003"
        assert warning.msg == (
            "20 processes with up to 10 connections each may open 200, and this PostgreSQL server accepts 197."
        )
        assert warning.hint == (
            "Set AGENTSTATE_CONNECTIONS to 9 or less, but not to 0, or raise max_connections of the server. "
            "AGENTSTATE_PROCESSES should count each web process, each worker with threads, with prefork each child and "
            "its parent, and `update_search --follow`; `celery beat` opens no connection."
        )
        assert compared() == []  # a check that is not told of the database does not ask it


@pytest.mark.parametrize(
    "processes, what",
    [
        (1, "Set AGENTSTATE_CONNECTIONS to 197 or less, but not to 0"),
        (500, "Set AGENTSTATE_CONNECTIONS to 3, and run at most 65 processes"),
    ],
)
def test_connections_without_a_limit_are_warned_of(
    url: str, settings: Any, processes: int, what: str
) -> None:
    settings.AGENTSTATE_PROCESSES = processes
    with connected(url, pool=0):
        for deploy, databases in ((False, ["default"]), (True, None)):
            (warning,) = compared(deploy=deploy, databases=databases)
            assert warning.id == "agentstate.W005"
            assert warning.msg == (
                "AGENTSTATE_CONNECTIONS is 0, so connections are not limited: each thread of each process may open "
                "one, and this PostgreSQL server accepts 197."
            )
            assert str(warning.hint).startswith(what)
        assert compared() == []


def test_a_server_that_cannot_be_reached_is_named_by_the_check_which_fails_only_where_it_was_to_ask_it(
    django_db_blocker: DjangoDbBlocker,
) -> None:
    with django_db_blocker.unblock(), connected("postgres://nobody@127.0.0.1:1/none", pool=10), own_pools():
        (told,) = compared(deploy=True)
        (failed,) = compared(deploy=True, databases=["default"])
    assert (told.id, told.is_serious(WARNING)) == ("agentstate.I002", False)
    assert (failed.id, failed.is_serious()) == ("agentstate.E005", True)
    assert told.msg == failed.msg
    assert told.msg.startswith(
        "The PostgreSQL server could not be asked how many connections it accepts: connection failed"
    )
    assert "\n" not in told.msg


@pytest.mark.parametrize(
    "rest, why",
    [
        ("no_such_database", 'database "no_such_database" does not exist'),
        ("postgres?sslmode=nonsense", "invalid sslmode value"),
        ("postgres?connect_timeout=soon", "bad value for connect_timeout"),
        ("n" * 64, "is longer than PostgreSQL's limit of 63 characters"),
    ],
)
def test_what_can_never_connect_is_a_warning_of_the_check_before_deployment(
    rest: str, why: str, postgres_server: services.Postgres, django_db_blocker: DjangoDbBlocker
) -> None:
    url = postgres_server.url(rest)
    with django_db_blocker.unblock(), connected(url, pool=10), own_pools():
        (warning,) = compared(deploy=True)
        (error,) = compared(databases=["default"])
    assert (warning.id, error.id) == ("agentstate.W007", "agentstate.E005")
    assert warning.is_serious(WARNING)
    assert why in warning.msg


def test_sqlite_has_no_limit_of_connections_to_compare_with(sqlite_url: str, settings: Any) -> None:
    settings.AGENTSTATE_PROCESSES = 1000
    with connected(sqlite_url):
        assert compared(deploy=True) == compared(databases=["default"]) == []


def test_without_a_number_of_processes_those_that_are_known_to_be_there_count(
    url: str, settings: Any
) -> None:
    now = timezone.now()
    long_ago = now - timedelta(hours=1)
    workers = [Worker(name=f"host:{number}", started_at=now, beat_at=now) for number in range(16)]
    Worker.objects.bulk_create(
        [
            *workers,
            Worker(name="threads:1", started_at=now, beat_at=now),
            Worker(name="lost", started_at=long_ago, beat_at=long_ago),
            Worker(name="ended", started_at=now, beat_at=now, stopped_at=now),
        ]
    )
    with connected(url, pool=10):
        assert compared(databases=["default"]) == []
        search_follower.say_that_it_follows()
        (warning,) = compared(databases=["default"])
        assert warning.msg.startswith("20 processes with up to 10 connections each may open 200")
        assert (
            "Counted were 17 workers online, 1 parent of prefork children, 1 web process and 1 `update_search "
            "--follow`. Set AGENTSTATE_PROCESSES where that is wrong: it counts each web process"
        ) in str(warning.hint)
        Worker.objects.filter(name="host:0").delete()
        assert compared(databases=["default"]) == []


def test_before_the_first_migration_one_web_process_counts(
    postgres_url: str, django_db_blocker: DjangoDbBlocker
) -> None:
    with django_db_blocker.unblock(), connected(postgres_url, pool=198), own_pools():
        (warning,) = compared(databases=["default"])
    assert warning.msg.startswith("1 process with up to 198 connections each may open 198")
    assert "Counted were 0 workers online, 0 parents of prefork children, 1 web process and 0" in str(
        warning.hint
    )


def test_no_statement_is_compiled_or_shared_between_processes_or_planned_for_each_of_its_values(
    url: str,
) -> None:
    with connection.cursor() as cursor:
        for name, value in (
            ("jit", "off"),
            ("max_parallel_workers_per_gather", "0"),
            ("plan_cache_mode", "force_generic_plan"),
        ):
            cursor.execute(f"SHOW {name}")
            assert cursor.fetchone() == (value,), name
