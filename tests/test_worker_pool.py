"""Celery's prefork pool as the workers use it."""

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


@pytest.mark.parametrize("kind, own", [("threads", True), ("solo", True), ("prefork", False)])
def test_a_process_that_runs_sessions_itself_is_online_from_its_start(
    kind: str, own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parent of a pool of processes runs none, and may fork again: it has no connection to the database."""
    started: list[str] = []
    monkeypatch.setattr(process, "heartbeat", lambda: started.append("heartbeat"))
    monkeypatch.setattr(process, "_threads", process._Threads())
    pool = object.__new__(get_implementation(kind))
    pool.limit = 1
    consumer = SimpleNamespace(pool=pool)
    process._start_heartbeat_of_threads(sender=consumer)
    assert started == ["heartbeat"] * own


def test_each_process_of_a_pool_is_online_from_its_start(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str] = []
    monkeypatch.setattr(process, "heartbeat", lambda: started.append("heartbeat"))
    signals.worker_process_init.send(sender=None)
    assert started == ["heartbeat"]
