"""A worker's reserved threads: what it asks the broker for while only these are free, and which session gives way."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import kombu
import pytest
import redis
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from kombu.transport.redis import Channel as KombusChannel

from agentstate import worker_threads as module
from agentstate.broker import ASK_SECONDS, QueueCycle, why_too_old
from agentstate.celery import app
from agentstate.queues import FOUND_QUEUE, LATER_QUEUE, QUEUE, QUEUES, SWEEP_QUEUE
from agentstate.worker_threads import SHORT_SECONDS, RunningTask, WorkerThreads, use


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "monotonic", clock)
    return clock


@contextmanager
def used(threads: WorkerThreads) -> Iterator[WorkerThreads]:
    """The threads of this process."""
    use(threads)
    try:
        yield threads
    finally:
        use(WorkerThreads())


def running(ordinary: int, reserved: int, tasks: int) -> WorkerThreads:
    threads = WorkerThreads(ordinary, reserved)
    for _ in range(tasks):
        threads.begin()
    return threads


def begin_session(threads: WorkerThreads) -> RunningTask:
    task = threads.begin()
    threads.run_here(task)
    assert threads.session_here() is task
    return task


@pytest.mark.parametrize(
    "ordinary, reserved, tasks, asked",
    [
        pytest.param(2, 2, 1, QUEUES, id="an ordinary thread is free"),
        pytest.param(2, 2, 2, (SWEEP_QUEUE, QUEUE), id="the reserved ones are free"),
        pytest.param(2, 2, 3, (SWEEP_QUEUE, QUEUE), id="one of them is free"),
        # As behind a connection that was lost: Celery has forgotten meanwhile what runs, and asks.
        pytest.param(2, 2, 4, (), id="none is free"),
        pytest.param(2, 0, 1, QUEUES, id="none is reserved"),
        pytest.param(0, 0, 0, QUEUES, id="not a worker with threads"),
    ],
)
def test_while_only_reserved_threads_are_free_a_worker_asks_for_what_must_not_wait(
    ordinary: int, reserved: int, tasks: int, asked: tuple[str, ...]
) -> None:
    cycle = QueueCycle()
    cycle.update([*QUEUES])
    with used(running(ordinary, reserved, tasks)):
        assert cycle.consume(len(QUEUES)) == [*asked]


def test_another_consumer_in_a_process_that_is_full_is_not_affected() -> None:
    """Such as one of a tool that waits for an answer: the tool itself is what fills the threads."""
    cycle = QueueCycle()
    cycle.update(["replies"])
    with used(running(1, 1, 2)):
        assert cycle.consume(1) == ["replies"]


@pytest.mark.parametrize(
    "threads, queue, seconds",
    [
        pytest.param(running(1, 1, 0), LATER_QUEUE, None, id="an ordinary thread is free"),
        pytest.param(running(1, 1, 1), LATER_QUEUE, ASK_SECONDS, id="a reserved one is free"),
        pytest.param(running(1, 1, 1), QUEUE, None, id="it reads nothing else"),
        pytest.param(running(1, 0, 1), LATER_QUEUE, None, id="none is reserved"),
        pytest.param(WorkerThreads(), LATER_QUEUE, None, id="not a worker with threads"),
    ],
)
def test_a_worker_whose_reserved_threads_are_free_asks_again_soon_so_that_another_one_takes_anything(
    threads: WorkerThreads,
    queue: str,
    seconds: float | None,
    monkeypatch: pytest.MonkeyPatch,
    redis_url: str,
) -> None:
    asked_for: list[float | None] = []
    monkeypatch.setattr(
        KombusChannel, "_brpop_start", lambda channel, timeout=None: asked_for.append(timeout)
    )
    with kombu.Connection(redis_url) as connection, used(threads):
        channel: Any = connection.channel()
        monkeypatch.setattr(type(channel), "active_queues", {queue})
        channel._brpop_start()
    assert asked_for == [seconds]
    # Sessions wait for no longer, and a full worker asks no more often.
    assert 0.02 <= ASK_SECONDS <= 0.1


@pytest.mark.parametrize(
    "version, refused",
    [("5.0.14", True), ("6.0.0", False), ("7.2.4", False), ("unknown", False), (None, False)],
)
def test_a_server_that_does_not_take_parts_of_seconds_is_refused_before_the_worker_starts(
    version: str | None, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def info(server: redis.Redis, section: str) -> dict[str, str]:
        if version is None:
            raise redis.ConnectionError("It is away for now.")
        return {"redis_version": version}

    monkeypatch.setattr(redis.Redis, "info", info)
    assert why_too_old("redis://broker") == (
        f"The broker is Redis {version}, and it has to be at least Redis 6." if refused else ""
    )


def test_other_messages_stay_in_the_broker_until_an_ordinary_thread_is_free(redis_url: str) -> None:
    taken: list[str] = []

    def take(body: str, message: Any) -> None:
        message.ack()
        taken.append(body)

    with (
        kombu.Connection(redis_url) as connection,
        redis.Redis.from_url(redis_url) as server,
        used(WorkerThreads(1, 1)) as threads,
    ):
        task = threads.begin()
        queues = [*app.amqp.queues.values()]
        sending = kombu.Producer(connection)
        for name in LATER_QUEUE, FOUND_QUEUE, QUEUE, SWEEP_QUEUE:
            sending.publish(name, exchange=name, routing_key=name, declare=queues)
        with kombu.Consumer(connection, queues, callbacks=[take]):
            while len(taken) < 2:
                connection.drain_events(timeout=30)
            with pytest.raises(socket.timeout):
                connection.drain_events(timeout=5 * ASK_SECONDS)
            assert taken == [SWEEP_QUEUE, QUEUE]
            assert [server.llen(name) for name in (FOUND_QUEUE, LATER_QUEUE)] == [1, 1]
            threads.end(task)
            while len(taken) < 4:
                connection.drain_events(timeout=30)
    assert taken[2:] == [FOUND_QUEUE, LATER_QUEUE]


def test_a_session_gives_way_for_each_session_that_lasts_in_a_reserved_thread(clock: Clock) -> None:
    threads = WorkerThreads(2, 2)
    tasks = [begin_session(threads) for _ in range(4)]
    assert not any(map(threads.gives_way, tasks))
    clock.now += SHORT_SECONDS
    assert [*map(threads.gives_way, tasks)] == [True, True, False, False]
    # Until they have ended their steps.
    assert [*map(threads.gives_way, reversed(tasks))] == [False, False, True, True]
    threads.end(tasks[0])
    assert [*map(threads.gives_way, tasks[1:])] == [True, False, False]
    threads.end(tasks[1])
    begin_session(threads)
    assert not any(map(threads.gives_way, tasks[2:]))
    clock.now += SHORT_SECONDS
    assert threads.gives_way(tasks[3])


def test_no_session_gives_way_for_one_that_is_short_nor_for_the_sweep(clock: Clock) -> None:
    """A session that gives way has to be loaded again, and where nothing waits its thread would have nothing to do."""
    threads = WorkerThreads(2, 2)
    tasks = [begin_session(threads) for _ in range(2)]
    threads.begin()
    clock.now += 1_000
    for _ in range(5):
        short = begin_session(threads)
        clock.now += SHORT_SECONDS / 2
        assert not any(map(threads.gives_way, [*tasks, short]))
        threads.end(short)


def test_without_reserved_threads_none_gives_way_before_it_is_asked_to(clock: Clock) -> None:
    threads = WorkerThreads(1, 0)
    tasks = [begin_session(threads) for _ in range(3)]
    clock.now += 1_000
    assert not any(map(threads.gives_way, tasks))


def test_a_thread_that_no_worker_has_given_a_task_runs_none(clock: Clock) -> None:
    """As in `manage.py shell`, and in tests that call the task."""
    threads = WorkerThreads(1, 1)
    assert threads.session_here() is None
    for _ in range(3):
        begin_session(threads)
    clock.now += 1_000
    assert not threads.gives_way(None)


class ThreadsOfAWorker(RuleBasedStateMachine):
    """Sessions, short ones too, and other tasks come, go, and ask whether they have to give way."""

    @initialize(ordinary=st.integers(1, 4), reserved=st.integers(1, 3))
    def start(self, ordinary: int, reserved: int) -> None:
        self.threads = WorkerThreads(ordinary, reserved)
        self.most = ordinary + reserved
        self.now = 1_000.0
        self.sessions: dict[RunningTask, float] = {}
        self.others: list[RunningTask] = []
        self.leaving: set[RunningTask] = set()

    @property
    def count(self) -> int:
        return len(self.sessions) + len(self.others)

    @precondition(lambda self: self.count < self.most)
    @rule()
    def begin_session(self) -> None:
        with patch.object(module, "monotonic", lambda: self.now):
            self.sessions[begin_session(self.threads)] = self.now

    @precondition(lambda self: self.count < self.most)
    @rule()
    def begin_other(self) -> None:
        self.others.append(self.threads.begin())

    @precondition(lambda self: self.others)
    @rule()
    def end_other(self) -> None:
        self.threads.end(self.others.pop())

    @precondition(lambda self: self.sessions)
    @rule(data=st.data())
    def end_session(self, data: st.DataObject) -> None:
        task = data.draw(st.sampled_from([*self.sessions]))
        self.threads.end(task)
        del self.sessions[task]
        self.leaving.discard(task)

    @rule(seconds=st.sampled_from([0.4, 1.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @precondition(lambda self: self.sessions)
    @rule(data=st.data())
    def ask(self, data: st.DataObject) -> None:
        task = data.draw(st.sampled_from([*self.sessions]))
        lasting = sum(self.now - begun >= SHORT_SECONDS for begun in self.sessions.values())
        too_many = lasting - len(self.leaving) > self.threads.ordinary
        with patch.object(module, "monotonic", lambda: self.now):
            answer = self.threads.gives_way(task)
        if self.count > self.threads.ordinary:
            assert answer == (task in self.leaving or too_many)
        if answer:
            self.leaving.add(task)

    @invariant()
    def the_threads_are_counted(self) -> None:
        assert self.threads.only_reserved_are_free() == (self.count >= self.threads.ordinary)
        assert self.threads.none_is_free() == (self.count >= self.most)


test_as_many_sessions_give_way_as_last_beyond_the_ordinary_threads = ThreadsOfAWorker.TestCase
