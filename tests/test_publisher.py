"""A worker publishes its agents when it starts, or as soon as its database is there."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import OperationalError, ProgrammingError
from haystack.components.agents import Agent
from haystack.components.generators.chat import MockChatGenerator

from agentstate import agent
from sessions_app.models import RegisteredAgent
from sessions_app.runtime import publisher as module
from sessions_app.runtime.publisher import Publisher
from tests.databases import connected
from tools.processes import CELERY, MANAGE, environment, run, running
from tools.services import wait_for

pytestmark = pytest.mark.django_db(transaction=True)

SOON = 0.01


@pytest.fixture
def registers(own_registry: None, settings: Any) -> Callable[..., None]:
    """Lets this process register the agents with these keys, and no others."""
    settings.AGENTSTATE_AGENTS = []

    def registers(*keys: str) -> None:
        for key in keys:
            agent(key)(lambda: Agent(chat_generator=MockChatGenerator("hello")))

    return registers


@contextmanager
def started(publisher: Publisher) -> Iterator[Publisher]:
    publisher.start()
    try:
        yield publisher
    finally:
        publisher.stop()


def agents() -> dict[str, str]:
    return dict(RegisteredAgent.objects.values_list("key", "problem"))


def test_agents_are_published_as_soon_as_the_database_is_there_and_each_kind_of_failure_is_told_once(
    registers: Callable[..., None], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    registers("claims")
    away, unmigrated = OperationalError("connection refused"), ProgrammingError("no such table\nLINE 1")
    failures: list[Exception] = [away, away, unmigrated, away, unmigrated]
    publish = module.publish_agents

    def fails_at_first(**how: Any) -> list[str]:
        if failures:
            raise failures.pop(0)
        return publish(**how)

    monkeypatch.setattr(module, "publish_agents", fails_at_first)
    with started(Publisher(every=SOON)):
        wait_for(lambda: agents() == {"claims": ""}, "the agents to be published")
    assert failures == []
    told = "The agents of this worker could not be published, which is tried again every 0.01 s: "
    assert caplog.messages == [
        f"{told}OperationalError: connection refused",
        f"{told}ProgrammingError: no such table",
    ]
    assert {record.levelname for record in caplog.records} == {"WARNING"}


@pytest.mark.slow
@pytest.mark.parametrize("pool", ["threads", "prefork"])
def test_a_worker_that_starts_before_the_database_is_migrated_publishes_its_agents_then(
    pool: str, postgres_url: str, redis_url: str, django_db_blocker: Any
) -> None:
    env = environment(
        DATABASE_URL=postgres_url, REDIS_URL=redis_url, SECRET_KEY="x", AGENTSTATE_HEARTBEAT_SECONDS="0.5"
    )
    with running((*CELERY, "worker", "--pool", pool, "--concurrency", "1"), env) as worker:
        worker.wait_for_output("The agents of this worker could not be published")
        assert run((*MANAGE, "migrate", "-v0"), env).returncode == 0
        with django_db_blocker.unblock(), connected(postgres_url):
            wait_for(RegisteredAgent.objects.filter(key="claims").exists, "the worker to publish its agents")
        worker.send(signal.SIGTERM)
        worker.wait()
    assert worker.output.count("The agents of this worker could not be published") == 1
