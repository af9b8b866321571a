"""A connection that was left behind is never handed to anybody, and nobody waits in vain for the room that it took."""

import _thread
import gc
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, NoReturn
from weakref import WeakSet

import psycopg_pool.pool
import pytest
from django.db import OperationalError, connection, connections, transaction
from psycopg import Connection

from agentstate.postgresql import pool
from agentstate.postgresql.pooled import PooledConnection, Stay
from sessions_app.models import Session
from sessions_app.runtime.connection import forget_connections
from tests.databases import backend, connected, in_use, only_pool, own_pools, refusing_after
from tools.services import START_SECONDS, wait_for

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def url(migrated_postgres_url: str, django_db_blocker: Any) -> Iterator[str]:
    """A database that this thread works on without a pool. At the end no connection of a pool is open.

    The collector runs only where a test or a pool asks it to: by itself it would find what was left behind in whichever
    thread has just made one object too many, which then runs a finalizer that waits for that same thread. It leaves out
    what earlier tests have made, as it leaves out what a server has imported: a pool lets it rest for nine times as
    long as it took, and who waits does so for ten seconds.
    """
    with django_db_blocker.unblock(), connected(migrated_postgres_url):
        try:
            gc.disable()
            gc.freeze()
            with own_pools():
                yield migrated_postgres_url
        finally:
            gc.collect()  # what a failed test has left, before anybody else meets it
            gc.unfreeze()
            gc.enable()
            with connection.cursor() as cursor:
                cursor.execute("TRUNCATE sessions_app_session CASCADE")


@contextmanager
def pooled(url: str, size: int) -> Iterator[Callable[[], None]]:
    """A pool of so many for this thread, and what another one calls first to use it without closing its connection."""
    with connected(url, pool=size):
        copy = connections["default"].copy

        def use() -> None:
            connections["default"] = copy()

        yield use


def in_a_thread(do: Callable[[], Any]) -> Any:
    """What is returned in a thread that has ended."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(do).result(START_SECONDS)


def query(use: Callable[[], None]) -> int:
    """The backend of a connection that is returned."""
    use()
    try:
        return backend()
    finally:
        connection.close()


class Garbage:
    """Only the collector finds it. By the time of its finalizer all that it holds counts as left behind."""

    def __init__(self, finalizer: Callable[["Garbage"], None], **held: Any) -> None:
        self.finalizer, self.held, self.itself = finalizer, held, self

    def __del__(self) -> None:
        self.finalizer(self)


def half_read() -> Any:
    """An iterator on a cursor of the server, in a transaction. It closes the cursor when it is deleted."""
    transaction.set_autocommit(False)
    rows = Session.objects.iterator(chunk_size=1)
    next(rows)
    return rows


def its_cursor() -> Any:
    """A cursor of the connection."""
    cursor = connection.cursor()
    cursor.execute("SELECT 1")
    return cursor


@pytest.mark.filterwarnings("ignore:.*was deleted while still open:ResourceWarning")
@pytest.mark.parametrize("make", [its_cursor, half_read])
def test_what_garbage_does_to_its_connection_at_its_end_is_not_done_to_the_next_user(
    url: str, make: Callable[[], Any]
) -> None:
    """Else the commit of the next user would be of one half, or fail."""
    Session.objects.create(agent="to be read")
    Session.objects.create(agent="to be read")
    in_finalizer, next_has_begun, has_ended = threading.Event(), threading.Event(), threading.Event()

    def finalizer(garbage: Garbage) -> None:
        in_finalizer.set()
        assert next_has_begun.wait(START_SECONDS)
        if make is its_cursor:
            garbage.held["made"].execute("ROLLBACK")

    def leave() -> int:
        use()
        own = backend()
        Garbage(finalizer, made=make())
        return own

    def write() -> int:
        use()
        assert in_finalizer.wait(START_SECONDS)
        with transaction.atomic():
            Session.objects.create(agent="one")
            own = backend()
            next_has_begun.set()
            assert has_ended.wait(START_SECONDS)
            Session.objects.create(agent="two")
        connection.close()
        return own

    with pooled(url, 1) as use, ThreadPoolExecutor(1) as next_user:
        left = in_a_thread(leave)
        written = next_user.submit(write)
        gc.collect()
        has_ended.set()
        assert written.result(START_SECONDS) != left
        assert sorted(Session.objects.exclude(agent="to be read").values_list("agent", flat=True)) == [
            "one",
            "two",
        ]


def test_a_connection_that_is_used_without_djangos_is_nobody_elses(url: str) -> None:
    def open_it() -> Any:
        use()
        connection.ensure_connection()
        return connection.connection

    with pooled(url, 1) as use:
        held: list[Connection[Any]] = [in_a_thread(open_it)]
        gc.collect()
        with refusing_after(0.3), pytest.raises(OperationalError, match="couldn't get a connection"):
            in_a_thread(partial(query, use))
        own = held.pop().execute("SELECT pg_backend_pid()").fetchone()
        assert (in_a_thread(partial(query, use)),) != own
        assert in_use() == 0


def wait_until_somebody_waits() -> None:
    wait_for(lambda: only_pool()._waiting, "somebody to wait for a connection")


class Holder:
    """A thread that takes the only connection, and leaves it behind when it is told to."""

    def __init__(self, use: Callable[[], None]) -> None:
        self._use = use
        self._has_it, self._leaves, self.may_end = threading.Event(), threading.Event(), threading.Event()
        self._kept: list[Any] = []

    def ends(self) -> None:
        self._use()
        backend()
        self._has_it.set()
        assert self._leaves.wait(START_SECONDS)

    def hands_it_on(self) -> None:
        self._use()
        self._kept.append(its_cursor())
        self._has_it.set()

    def lives_on(self) -> None:
        self._use()
        copies = [connections["default"].copy()]
        copies[0].ensure_connection()
        self._has_it.set()
        assert self._leaves.wait(START_SECONDS)
        copies.clear()
        assert self.may_end.wait(START_SECONDS)

    def wait_until_it_has_it(self) -> None:
        assert self._has_it.wait(START_SECONDS)

    def leave_it(self) -> None:
        self._leaves.set()
        self._kept.clear()


def in_a_thread_of_python(do: Callable[[], None]) -> None:
    threading.Thread(target=do, daemon=True).start()


def in_a_thread_of_the_system(do: Callable[[], None]) -> None:
    _thread.start_new_thread(do, ())


@pytest.mark.parametrize("start", [in_a_thread_of_python, in_a_thread_of_the_system])
@pytest.mark.parametrize("do", [Holder.ends, Holder.hands_it_on, Holder.lives_on])
def test_who_waits_gets_the_room_of_what_is_left_behind_meanwhile(
    url: str, do: Callable[[Holder], None], start: Callable[[Callable[[], None]], None]
) -> None:
    with pooled(url, 1) as use, ThreadPoolExecutor(2) as waiting:
        query(use)
        holder = Holder(use)
        start(partial(do, holder))
        try:
            holder.wait_until_it_has_it()
            answers = [waiting.submit(query, use) for _ in range(2)]
            wait_until_somebody_waits()
            holder.leave_it()
            assert all(answer.result(START_SECONDS) for answer in answers)
            wait_for(lambda: in_use() == 0, "the connection to be back")
        finally:
            holder.may_end.set()


def test_who_waits_while_another_thread_collects_garbage_is_not_forgotten(url: str) -> None:
    """`gc.collect` does nothing then."""
    is_collecting, goes_on = threading.Event(), threading.Event()

    def finalizer(_: Garbage) -> None:
        is_collecting.set()
        assert goes_on.wait(START_SECONDS)

    def collect() -> None:
        Garbage(finalizer)
        gc.collect()

    def query() -> int:
        use()
        return backend()

    with pooled(url, 1) as use, ThreadPoolExecutor(2) as threads:
        holder = Holder(use)
        in_a_thread_of_python(holder.ends)
        holder.wait_until_it_has_it()
        collecting = threads.submit(collect)
        assert is_collecting.wait(START_SECONDS)
        holder.leave_it()
        waiting = threads.submit(query)
        wait_until_somebody_waits()
        collector = only_pool()
        wait_for(
            lambda: collector._collecting is not None and not collector._collecting.is_alive(),
            "a look in vain",
        )
        goes_on.set()
        collecting.result(START_SECONDS)
        assert waiting.result(START_SECONDS)


def test_a_connection_that_two_threads_close_at_once_is_returned_once(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    returned: list[Any] = []
    is_returning, goes_on = threading.Event(), threading.Event()
    return_it = pool.Pool.putconn

    def slowly(self: pool.Pool, conn: PooledConnection) -> None:
        returned.append(conn)
        is_returning.set()
        assert goes_on.wait(START_SECONDS)
        return_it(self, conn)

    monkeypatch.setattr(pool.Pool, "putconn", slowly)
    with connected(url, pool=1), ThreadPoolExecutor(1) as other:
        shared = connections["default"]
        shared.inc_thread_sharing()
        backend()
        closing = other.submit(shared.close)
        assert is_returning.wait(START_SECONDS)
        shared.close()
        goes_on.set()
        closing.result(START_SECONDS)
        assert len(returned) == 1
        assert in_use() == 0


def test_a_finalizer_that_queries_while_its_thread_connects_takes_no_room(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = pool.Pool.getconn
    inner: list[int] = []

    def interrupted(self: pool.Pool, timeout: float | None = None) -> PooledConnection:
        monkeypatch.setattr(pool.Pool, "getconn", connect)
        inner.append(backend())
        return connect(self, timeout)

    with connected(url, pool=2):
        monkeypatch.setattr(pool.Pool, "getconn", interrupted)
        assert backend() not in inner
        assert in_use() == 1
        connection.close()
        assert (len(inner), in_use()) == (1, 0)


@pytest.mark.parametrize(
    "where, name, behind, for_good",
    [
        (psycopg_pool.pool.WaitingClient, "wait", False, False),
        (pool.Pool, "_check_connection", False, False),
        (pool.Pool, "_add_to_pool", False, False),
        (pool.Pool, "_start_workers", False, False),
        (Stay, "detach", True, False),
        (Stay, "begin", True, False),
        (Stay, "detach", True, True),
        (pool.Pool, "lose", True, True),
        (pool.Pool, "replace_left", True, True),
    ],
)
@pytest.mark.parametrize("error", [KeyboardInterrupt, TimeoutError])
def test_a_thread_that_is_interrupted_while_it_takes_or_returns_a_connection_loses_none(
    url: str,
    monkeypatch: pytest.MonkeyPatch,
    where: type,
    name: str,
    behind: bool,
    for_good: bool,
    error: type[BaseException],
) -> None:
    usual = getattr(where, name)
    me = threading.get_ident()

    def interrupt(*args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() != me:
            return usual(*args, **kwargs)
        monkeypatch.setattr(where, name, usual)
        if behind:
            usual(*args, **kwargs)
        raise error

    def all_at_once() -> int:
        use()
        try:
            own = backend()
            barrier.wait(START_SECONDS)
            return own
        finally:
            connection.close()

    barrier = threading.Barrier(2)
    with pooled(url, 2) as use, ThreadPoolExecutor(2) as threads:
        if for_good:
            backend()
        monkeypatch.setattr(where, name, interrupt)
        with suppress(error, OperationalError):
            backend()
            connection.close_for_good() if for_good else connection.close()  # type: ignore[attr-defined]
        assert getattr(where, name) is usual
        connection.close()
        both = [threads.submit(all_at_once) for _ in range(2)]
        assert len({each.result(START_SECONDS) for each in both}) == 2
        assert only_pool().get_stats()["pool_size"] == 2


@pytest.mark.parametrize("in_transaction", [False, True])
def test_what_a_tool_has_set_for_its_connection_ends_behind_the_tool(url: str, in_transaction: bool) -> None:
    def asked(query: str) -> str:
        with connection.cursor() as cursor:
            cursor.execute(query)
            return str(cursor.fetchone()[0])

    def tool() -> None:
        use()
        if in_transaction:
            transaction.set_autocommit(False)
        with connection.cursor() as cursor:
            cursor.execute("SET statement_timeout = '77s'")
            cursor.execute("SELECT pg_advisory_lock(1)")
        forget_connections()

    def next_user() -> tuple[str, ...]:
        use()
        assert in_use() == 0
        # The server lets go of the lock when it has seen that the connection is closed.
        asked("SELECT pg_advisory_lock(1)")
        found = asked("SHOW statement_timeout"), asked("SELECT pg_advisory_unlock(1)")
        connection.close()
        return found

    with pooled(url, 1) as use, ThreadPoolExecutor(1) as tools:
        tools.submit(tool).result(START_SECONDS)
        assert in_a_thread(next_user) == ("0", "True")


@pytest.mark.parametrize("is_frozen", [False, True])
def test_what_was_left_behind_is_closed_with_its_pool(url: str, is_frozen: bool) -> None:
    """Else the database of a test run could not be deleted."""

    def leave() -> int:
        use()
        return backend()

    def close() -> None:
        leave()
        connection.close()

    def is_open(left: int) -> bool:
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE pid = %s", [left])
            return bool(cursor.fetchone()[0])

    with pooled(url, 2) as use:
        own = backend()
        in_a_thread(close)  # who waits for a new one lets the collector look
        left = in_a_thread(leave)
        if is_frozen:
            gc.freeze()
        assert own != left
        assert is_open(left)
        connection.close_pool()  # type: ignore[attr-defined]
    wait_for(lambda: not is_open(left), "the server to see that the connection is closed")


def test_who_was_refused_keeps_no_connection_and_nothing_else(url: str) -> None:
    """psycopg keeps the error of whoever was refused until a connection is free, which may be the one it holds."""
    requests: WeakSet[threading.Event] = WeakSet()

    def refused() -> None:
        use()
        request = threading.Event()
        requests.add(request)
        cursor = its_cursor()
        with refusing_after(0.1), suppress(OperationalError):
            connections["default"].copy().ensure_connection()
        assert cursor

    def are_collected() -> bool:
        gc.collect()  # nothing, if that of the pool collects at this moment
        return not requests

    with pooled(url, 1) as use:
        in_a_thread(refused)
        wait_for(are_collected, "the request to be forgotten")
        assert in_a_thread(partial(query, use))


def test_what_a_tool_has_locked_ends_behind_it_though_its_error_is_kept(url: str) -> None:
    def fail() -> NoReturn:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_lock(1)")
            raise LookupError

    def tool() -> LookupError:
        use()
        try:
            fail()
        except LookupError as error:
            forget_connections()
            return error

    def lock_it() -> bool:
        use()
        with connection.cursor() as cursor:
            # The server lets go of the lock when it has seen that the connection is closed.
            cursor.execute("SELECT pg_advisory_lock(1), pg_advisory_unlock(1)")
            return bool(cursor.fetchone()[1])

    with pooled(url, 1) as use:
        error = in_a_thread(tool)
        assert error.__traceback__ is not None
        assert in_a_thread(lock_it)
