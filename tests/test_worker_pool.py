"""Celery's pools as the workers use them."""

import os
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from celery import signals
from celery.concurrency import get_implementation
from celery.worker import state
from kombu.asynchronous import Hub

from agentstate.celery import app
from sessions_app.runtime import process
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
    threads = get_implementation("threads")(limit=1, app=app)
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


def is_ready(kind: str, limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker with a pool of this kind and size says in its main process that it has started."""
    monkeypatch.setattr(process, "_threads", process._Threads())
    workers_pool = object.__new__(get_implementation(kind))
    workers_pool.limit = limit
    process._start_heartbeat_of_threads(sender=SimpleNamespace(pool=workers_pool))


@pytest.mark.parametrize("kind, own", [("threads", True), ("solo", True), ("prefork", False)])
def test_a_process_that_runs_sessions_itself_is_online_from_its_start(
    kind: str, own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parent of a pool of processes runs none, and may fork again: it has no connection to the database."""
    started: list[str] = []
    monkeypatch.setattr(process, "heartbeat", lambda: started.append("heartbeat"))
    is_ready(kind, 1, monkeypatch)
    assert started == ["heartbeat"] * own


def test_each_process_of_a_pool_is_online_from_its_start(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str] = []
    monkeypatch.setattr(process, "heartbeat", lambda: started.append("heartbeat"))
    signals.worker_process_init.send(sender=None)
    assert started == ["heartbeat"]


@pytest.mark.parametrize(
    "kind, of_three", [("threads", [False, False, True]), ("prefork", [True, True, True])]
)
def test_a_worker_is_busy_while_none_of_its_threads_is_free(
    kind: str, of_three: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process of a pool runs one session, and does not know whether another process is free."""
    monkeypatch.setattr(process, "heartbeat", lambda: None)
    is_ready(kind, 3, monkeypatch)
    busy = []

    @app.task(name="of-this-test")
    def one_in_another(depth: int) -> None:
        busy.append(process.is_busy())
        if depth < 3:
            one_in_another.apply((depth + 1,))
        raise LookupError("A task that fails leaves its thread free, too.")

    one_in_another.apply((1,))
    app.tasks.unregister("of-this-test")
    assert busy == of_three
    assert process.is_busy() == (kind == "prefork")
