"""A worker publishes its agents when it starts, or as soon as its database is there, and withdraws nobody else's."""

import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import OperationalError, ProgrammingError, connection
from django.utils import timezone
from haystack.components.agents import Agent
from haystack.components.generators.chat import MockChatGenerator

from agentstate import agent
from agentstate.durable import agent as durable_agent
from agentstate.durable.registry import AgentBuildFailed
from sessions_app.models import AgentDefinition, RegisteredAgent, online_since
from sessions_app.runtime import agents as publishing
from sessions_app.runtime import process
from sessions_app.runtime import publisher as module
from sessions_app.runtime.agents import publish_agents
from sessions_app.runtime.own_agents import own_agents
from sessions_app.runtime.publisher import Publisher
from tests import builders
from tests.databases import connected
from tools.processes import CELERY, MANAGE, environment, run, running
from tools.services import wait_for

pytestmark = pytest.mark.django_db(transaction=True)

SOON = 0.01
NOW = timezone.now()
# What was said before is that of a worker that is offline by then.
LATER = NOW + (NOW - online_since(NOW)) + timedelta(seconds=1)
WITHDRAWN = "It is no longer registered: add its module to AGENTSTATE_AGENTS."


@pytest.fixture
def registers(own_registry: None, settings: Any) -> Callable[..., None]:
    """Lets this process register the agents with these keys, and no others."""
    settings.AGENTSTATE_AGENTS = []

    def registers(*keys: str) -> None:
        for key in keys:
            agent(key)(lambda: Agent(chat_generator=MockChatGenerator("hello")))

    return registers


def other_worker(key: str, definition: str = "d1", at: datetime = NOW) -> None:
    """Another worker has this agent, and says so then."""
    if not RegisteredAgent.objects.filter(key=key).exists():
        builders.agent(key, definition=definition)
    AgentDefinition.objects.update_or_create(agent=key, definition=definition, defaults={"beat_at": at})


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

    def fails_at_first(**how: Any) -> list[str]:
        if failures:
            raise failures.pop(0)
        return publish_agents(**how)

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


def test_a_worker_withdraws_no_agent_that_another_one_has_as_long_as_that_is_online(
    registers: Callable[..., None],
) -> None:
    registers("claims")
    builders.done(agent_key="used")
    for key in ("used", "unused"):
        other_worker(key)
    publisher = Publisher()
    for _ in range(2):
        publisher.beat(NOW)
        assert agents() == {"claims": "", "used": "", "unused": ""}
    publisher.beat(LATER)
    assert agents() == {"claims": "", "used": WITHDRAWN}


def test_a_worker_that_cannot_build_an_agent_says_so_once_no_other_worker_has_it(
    registers: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    registers("claims")
    publish_agents(beat_at=NOW)

    def fail(registration: Any) -> Any:
        raise AgentBuildFailed("OPENAI_API_KEY is missing")

    monkeypatch.setattr(durable_agent, "build", fail)
    publisher = Publisher()
    publisher.beat(NOW)
    assert agents() == {"claims": ""}
    assert own_agents().leaves("claims", "", NOW)
    publisher.beat(LATER)
    assert agents() == {"claims": "OPENAI_API_KEY is missing"}
    assert not own_agents().leaves("claims", "", LATER)


def test_a_command_withdraws_no_agent_of_a_worker_and_says_of_none_that_a_worker_has_it(
    registers: Callable[..., None],
) -> None:
    registers("claims")
    other_worker("used", at=timezone.now())
    publish_agents()
    assert agents() == {"claims": "", "used": ""}
    assert AgentDefinition.objects.get(agent="claims").beat_at is None


def test_what_only_offline_workers_have_is_withdrawn_at_once(registers: Callable[..., None]) -> None:
    builders.done(agent_key="used")
    other_worker("used")
    Publisher().beat(LATER)
    assert agents() == {"used": WITHDRAWN}


def test_an_agent_that_another_worker_publishes_meanwhile_is_not_withdrawn(
    registers: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    builders.done(agent_key="used")
    why = publishing._why_not_registered

    def meanwhile(*args: Any) -> str:
        RegisteredAgent.objects.update(published_at=NOW + timedelta(seconds=1))
        return why(*args)

    monkeypatch.setattr(publishing, "_why_not_registered", meanwhile)
    Publisher().beat(NOW)
    assert agents() == {"used": ""}


def test_a_worker_that_was_taken_for_offline_publishes_its_agents_again_and_nothing_that_is_still_there(
    registers: Callable[..., None],
) -> None:
    registers("deleted", "withdrawn", "changed")
    publisher = Publisher()
    publisher.beat(NOW)
    RegisteredAgent.objects.filter(key="deleted").delete()
    RegisteredAgent.objects.filter(key="withdrawn").update(problem=WITHDRAWN)
    # A worker of the next version has published it.
    RegisteredAgent.objects.filter(key="changed").update(definition="d2")
    publisher.beat(LATER)
    assert agents() == {"changed": "", "deleted": "", "withdrawn": ""}
    assert RegisteredAgent.objects.get(key="changed").definition == "d2"
    assert AgentDefinition.objects.filter(beat_at=LATER).count() == 3


def test_with_each_beat_a_worker_says_by_one_statement_that_it_has_its_agents(
    registers: Callable[..., None], django_assert_num_queries: Any
) -> None:
    registers("claims", "research")
    publisher = Publisher()
    publisher.beat(NOW)
    soon = NOW + timedelta(seconds=5)
    # The other one finds that no agent is to be withdrawn.
    with django_assert_num_queries(2):
        publisher.beat(soon)
    assert [*AgentDefinition.objects.values_list("beat_at", flat=True)] == [soon] * 2


@pytest.mark.parametrize(
    "redis_url, modules, variable, warns",
    [
        ("redis://one", ["agentstate.demo.agents"], None, True),
        ("", ["agentstate.demo.agents"], None, False),
        ("redis://one", ["agentstate.demo.agents"], "agentstate.demo.agents", False),
        ("redis://one", ["desk.agents"], None, False),
    ],
    ids=["not set", "tried out on one machine", "set to them", "settings of one's own"],
)
def test_a_worker_says_at_its_start_that_it_has_the_demo_agents_since_the_setting_is_missing(
    redis_url: str,
    modules: list[str],
    variable: str | None,
    warns: bool,
    settings: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    settings.REDIS_URL, settings.AGENTSTATE_AGENTS = redis_url, modules
    monkeypatch.delenv("AGENTSTATE_AGENTS", raising=False)
    if variable is not None:
        monkeypatch.setenv("AGENTSTATE_AGENTS", variable)
    monkeypatch.setattr(process, "start_publishing", lambda: None)
    with monkeypatch.context() as patched:
        patched.setattr(connection, "vendor", "sqlite")  # as where the tests have SQLite
        process._publish_agents()
    told = "AGENTSTATE_AGENTS is not set, so this worker has the demo agents only."
    assert any(message.startswith(told) for message in caplog.messages) == warns


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
    # While it is being migrated there may be failures of other kinds.
    told = re.findall(r"could not be published, which is tried again every 0\.5 s: (.*)", worker.output)
    assert len(told) == len({*told})
