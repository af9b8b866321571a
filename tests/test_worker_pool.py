"""Celery's pools as the workers use them."""

import os
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from celery import signals
from celery.concurrency import get_implementation
from celery.worker import state
from django.db import OperationalError
from kombu.asynchronous import Hub

from agentstate.celery import app
from agentstate.queues import FOUND_QUEUE, LATER_QUEUE, QUEUE, QUEUES, SWEEP_QUEUE
from agentstate.worker_threads import worker_threads
from sessions_app.runtime import process
from sessions_app.runtime.leases import Heartbeat
from tools.services import wait_for


def pool() -> Any:
    """The pool of a worker that has not started any process."""
    return object.__new__(get_implementation(app.conf.worker_pool).Pool)


def test_a_worker_connects_to_the_broker_again_though_a_child_died_in_the_meantime():
    hub = Hub()
    child = SimpleNamespace(_sentinel_poll=None)
    pool()._track_child_process(child, hub)
    assert not hub.readers


def test_a_worker_is_told_when_a_child_ends():
    hub = Hub()
    workers_pool = pool()
    reading, writing = os.pipe()
    child = SimpleNamespace(_popen=SimpleNamespace(sentinel=reading))
    workers_pool._track_child_process(child, hub)
    assert [*hub.readers] == [child._sentinel_poll]
    workers_pool._untrack_child_process(child, hub)
    assert not hub.readers
    os.close(reading)
    os.close(writing)


class _Request:
    """A task that Celery has handed to the pool."""

    id = "of-this-test"


def test_a_worker_asks_for_its_next_message_as_soon_as_one_of_its_threads_is_free() -> None:
    """Its event loop waits for nothing else here: without being told of the thread it would wait for good."""
    hub, request, goes_on = Hub(), _Request(), threading.Event()
    reading, writing = os.pipe()
    hub.add_reader(reading, lambda: None)  # as the connection to the broker, which says nothing
    poll = hub.poller.poll
    hub.poller.poll = lambda timeout: poll(-1)
    threads: Any = get_implementation("threads")(limit=1, app=app)
    threads.register_with_event_loop(hub)
    threads_were_free: list[bool] = []
    # Celery's own functions for a task that was received, and for one that has ended.
    state.task_reserved(request)

    def before_the_loop_waits() -> None:
        threads_were_free.append(not state.reserved_requests)

    def as_celery_does(failed_retval_runtime: Any) -> None:
        state.task_ready(request)

    hub.on_tick.add(before_the_loop_waits)  # type: ignore[attr-defined]  # it is a set
    loop = threading.Thread(target=hub.run_forever, daemon=True)
    threads.on_apply(goes_on.wait, (), callback=as_celery_does)
    loop.start()
    wait_for(lambda: threads_were_free, "the loop to wait")
    goes_on.set()
    wait_for(lambda: threads_were_free[-1], "the loop to ask for messages, since a thread is free", 20)
    hub.stop()
    loop.join()
    threads.on_stop()
    hub.close()
    os.close(reading)
    os.close(writing)
    assert threads_were_free[0] is False


def is_ready(kind: str) -> None:
    """A worker with a pool of this kind says in its main process that it has started."""
    workers_pool = object.__new__(get_implementation(kind))
    process._start_heartbeat_of_threads(sender=SimpleNamespace(pool=workers_pool))


@pytest.mark.parametrize("kind, own", [("threads", True), ("solo", True), ("prefork", False)])
def test_a_process_that_runs_sessions_itself_is_online_from_its_start(
    kind: str, own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parent of a pool of processes runs none, and may fork again: it has no connection to the database."""
    started: list[str] = []
    monkeypatch.setattr(process, "heartbeat", lambda: started.append("heartbeat"))
    is_ready(kind)
    assert started == ["heartbeat"] * own


def test_each_process_of_a_pool_is_online_from_its_start(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str] = []
    monkeypatch.setattr(process, "heartbeat", lambda: started.append("heartbeat"))
    signals.worker_process_init.send(sender=None)
    assert started == ["heartbeat"]


def test_a_process_that_cannot_say_that_it_ends_ends_with_one_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(name: str) -> None:
        raise OperationalError("database or disk is full")

    monkeypatch.setattr(process, "_heartbeats", {process.worker_name(): Heartbeat("host:1", every=60)})
    monkeypatch.setattr(Heartbeat, "__exit__", lambda *ended: None)
    monkeypatch.setattr(process, "sign_off", full)
    monkeypatch.setattr(process, "connection", SimpleNamespace(close=lambda: None))
    process._sign_off()
    told = f"Worker {process.worker_name()} ends without having said so: database or disk is full"
    assert [record.getMessage() for record in caplog.records] == [told]


def started(limit: int) -> Any:
    threads: Any = get_implementation("threads")(limit=limit, app=app)
    threads.on_start()
    return threads


@pytest.mark.parametrize(
    "redis_url, read, reserved",
    [
        ("redis://broker", QUEUES, 3),
        ("redis://broker", (QUEUE, LATER_QUEUE), 3),
        ("redis://broker", (QUEUE, SWEEP_QUEUE), 0),
        ("redis://broker", (FOUND_QUEUE, LATER_QUEUE), 0),
        ("", QUEUES, 0),
    ],
)
def test_a_worker_has_reserved_threads_where_it_reads_what_must_not_wait_and_other_queues(
    redis_url: str, read: tuple[str, ...], reserved: int, settings: Any
) -> None:
    settings.REDIS_URL, settings.AGENTSTATE_RESERVED_THREADS = redis_url, 3
    queues: Any = app.amqp.queues
    queues.select(read)
    try:
        threads = started(4)
    finally:
        queues._consume_from = None
    now = worker_threads()
    threads.on_stop()
    assert (now.ordinary, now.reserved, threads.num_processes) == (4, reserved, 4 + reserved)


def test_a_thread_is_taken_until_its_task_has_ended_also_where_it_failed() -> None:
    """A message that is delivered twice is two tasks with one id, and the second ends at once."""
    threads, goes_on = started(2), threading.Event()
    now = worker_threads()
    seen: list[bool] = []
    threads.register_with_event_loop(_Loop(lambda: None))
    threads.register_with_event_loop(_Loop(lambda: seen.append(now.none_is_free())))
    try:
        threads.on_apply(goes_on.wait, (), callback=str, correlation_id="one")
        threads.on_apply(_fail, (), callback=str, correlation_id="one")
        wait_for(lambda: seen, "the event loop to be woken")
        # It asks for the next message in this very moment.
        assert seen == [False]
        threads.on_apply(goes_on.wait, (), callback=str)
        assert now.none_is_free()
        goes_on.set()
        wait_for(lambda: not now.only_reserved_are_free(), "the threads to be free")
    finally:
        goes_on.set()
        threads.on_stop()


class _Loop:
    """One that turns as soon as it is woken."""

    def __init__(self, turn: Callable[[], None]) -> None:
        self.turn = turn

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.turn()


def _fail() -> None:
    raise LookupError("A task that fails leaves its thread free, too.")


def test_a_task_knows_in_which_of_the_threads_it_runs() -> None:
    threads = started(2)
    now = worker_threads()
    tasks: list[Any] = []
    try:
        for _ in range(2):
            threads.on_apply(lambda: tasks.append(now.session_here()), (), callback=str).wait()
    finally:
        threads.on_stop()
    assert None not in tasks
    assert len(set(tasks)) == 2


def test_behind_the_end_of_its_worker_a_process_knows_of_no_threads() -> None:
    started(1).on_stop()
    assert (worker_threads().ordinary, worker_threads().reserved) == (0, 0)
