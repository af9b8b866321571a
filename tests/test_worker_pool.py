"""Celery's pools as the workers use them."""

import os
from types import SimpleNamespace
from typing import Any

import pytest
from celery import signals
from celery.concurrency import get_implementation
from kombu.asynchronous import Hub

from agentstate.celery import app
from sessions_app.runtime import process


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
