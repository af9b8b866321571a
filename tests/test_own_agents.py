"""Workers that register different agents leave each other's sessions alone, and no session waits for nobody."""

import signal
from datetime import timedelta
from typing import Any

import pytest
import redis
from celery import current_app
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from agentstate.queues import QUEUES
from sessions_app import actions, wake
from sessions_app.models import AgentDefinition, Event, RegisteredAgent, Session, Status, online_since
from sessions_app.runtime import leases
from sessions_app.runtime.own_agents import OwnAgents, own_agents
from tests import builders, driving, sample_agents
from tests.builders import DEFINITION
from tests.chaos import PERSON
from tests.databases import connected
from tests.driving import KEY, Desk
from tools.processes import CELERY, environment, running
from tools.services import wait_for

pytestmark = pytest.mark.django_db

NEW = "e" * 64
OTHERS = OwnAgents(["another"], [])


def due(agent: str = "claims") -> Session:
    session = builders.queued()
    Session.objects.filter(pk=session.pk).update(agent=agent)
    return session


def had_by_another_worker(agent: str, definition: str = "d1", *, offline: bool = False) -> None:
    now = timezone.now()
    at = online_since(now) - timedelta(seconds=1) if offline else now
    AgentDefinition.objects.create(agent=agent, definition=definition, beat_at=at)


def row(session: Session) -> dict[str, Any]:
    return {**Session.objects.filter(pk=session.pk).values().get()}


def test_a_session_whose_agent_only_another_worker_has_is_left_to_it_as_it_is() -> None:
    session = due()
    had_by_another_worker("claims")
    before = row(session)
    assert leases.claim(session.pk, "host:1", timezone.now(), own=OTHERS) is None
    assert row(session) == before
    assert leases.claim(session.pk, "host:2", timezone.now(), own=OwnAgents(["claims"], [])) is not None


def test_a_lost_session_is_left_to_a_worker_that_has_its_agent() -> None:
    session = builders.lost()
    had_by_another_worker(session.agent)
    assert leases.claim(session.pk, "host:1", timezone.now(), own=OTHERS) is None
    assert (
        leases.claim(
            session.pk, "host:2", timezone.now(), own=OwnAgents([session.agent], [session.definition])
        )
        is not None
    )


def test_a_session_whose_agent_no_worker_that_is_online_has_is_claimed() -> None:
    session = due()
    had_by_another_worker("claims", offline=True)
    AgentDefinition.objects.create(agent="claims", definition="of an earlier version")
    had_by_another_worker("research")
    assert leases.claim(session.pk, "host:1", timezone.now(), own=OTHERS) is not None


def test_to_ask_whose_agent_it_is_costs_no_statement_where_it_is_ones_own() -> None:
    def statements(own: OwnAgents | None) -> int:
        session = due()
        with CaptureQueriesContext(connection) as sent:
            assert leases.claim(session.pk, "host:1", timezone.now(), own=own) is not None
        return len(sent)

    had_by_another_worker("claims")
    assert statements(OwnAgents(["another", "claims"], [DEFINITION])) == statements(None)


def test_a_worker_without_the_agent_lets_the_session_wait_for_a_person_only_if_no_other_has_it(
    desk: Desk,
) -> None:
    desk.agent(sample_agents.refunds)
    session = desk.start()
    driving.unregister(KEY)
    had_by_another_worker(KEY, "another")
    assert desk.drive(session) == "busy"
    assert (desk.fresh(session).status, desk.events(session)) == (Status.QUEUED, ["started"])
    AgentDefinition.objects.all().delete()
    assert desk.drive(session) == "waiting"
    assert desk.fresh(session).why.startswith(f"No agent is registered as '{KEY}'")


def approved(desk: Desk, accepted: str) -> Session:
    """A session in the middle of its turn that was queued to go on with this definition of its agent."""
    desk.agent(lambda: sample_agents.long_run(2, system_prompt="Be kind."))
    session = desk.start()
    assert desk.drive(session, slice_seconds=0) == "queued"
    Session.objects.filter(pk=session.pk).update(definition=accepted)
    return session


def test_a_session_that_goes_on_with_a_new_definition_is_left_to_a_worker_that_has_it(desk: Desk) -> None:
    session = approved(desk, NEW)
    RegisteredAgent.objects.update(definition=NEW)
    had_by_another_worker(KEY, NEW)
    before = row(session)
    assert desk.drive(session) == "busy"
    assert row(session) == before
    AgentDefinition.objects.filter(definition=NEW).update(beat_at=None)
    assert desk.drive(session) == "waiting"
    assert "The agent has changed" in desk.fresh(session).why


def test_a_session_that_ran_with_an_earlier_definition_is_not_left_to_those_that_still_have_it(
    desk: Desk,
) -> None:
    """They are about to be replaced, and its next turn may begin with the agent as it is now."""
    session = approved(desk, "of earlier workers")
    had_by_another_worker(KEY, "of earlier workers")
    assert desk.drive(session) == "waiting"


def test_to_ask_which_definition_it_is_costs_no_statement_where_the_agent_was_built(desk: Desk) -> None:
    desk.agent(sample_agents.refunds)
    session = desk.start()
    assert desk.drive(session, slice_seconds=0) == "queued"
    own = own_agents()
    # What one statement of PostgreSQL compares with.
    assert (KEY in own.keys, desk.fresh(session).definition in own.definitions) == (True, True)
    had_by_another_worker(KEY, "another")
    definition = desk.fresh(session).definition
    with CaptureQueriesContext(connection) as sent:
        assert not own.leaves(KEY, definition, timezone.now())
    assert len(sent) == 0


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("pool", ["threads", "prefork"])
def test_a_worker_that_lacks_an_agent_neither_takes_it_from_the_desk_nor_runs_its_sessions(
    pool: str, new_database: Any, redis_url: str, django_db_blocker: Any
) -> None:
    env = environment(
        DATABASE_URL=new_database("postgres"),
        REDIS_URL=redis_url,
        SECRET_KEY="x",
        AGENTSTATE_DEMO_DELAY="0",
        # A worker that is stopped for a while is still online.
        AGENTSTATE_HEARTBEAT_SECONDS="60",
        AGENTSTATE_LEASE_SECONDS="120",
    )
    command = (*CELERY, "worker", "--pool", pool, "--concurrency", "1", "--hostname")
    without = env | {"AGENTSTATE_AGENTS": "benchmarks.waiting_agent"}

    def send_wake_up(session: Session) -> bool:
        with current_app.connection_for_write(redis_url) as broker:
            wake.send_advances([session.pk], connection=broker)
        return True

    def was_taken() -> bool:
        with redis.Redis.from_url(redis_url) as broker:
            return not any(broker.exists(name) for name in (*QUEUES, "unacked"))

    def has_ended() -> bool:
        return Session.objects.filter(pk=session.pk, phase="done").exists() or not send_wake_up(session)

    with django_db_blocker.unblock(), connected(env["DATABASE_URL"]):
        published = RegisteredAgent.objects.filter
        with running((*command, "with@here"), env) as worker:
            wait_for(published(key="claims").exists, "the first worker to publish its agents")
            with running((*command, "without@here"), without):
                wait_for(published(key="waiting").exists, "the second worker to publish its agent")
                assert not published().exclude(problem="").exists()
                session = actions.start(actor=PERSON, agent="claims", message="What is covered?")
                worker.send(signal.SIGSTOP)
                send_wake_up(session)
                wait_for(was_taken, "the worker without the agent to take the wake-up")
                assert Session.objects.get(pk=session.pk).status == Status.QUEUED
                worker.send(signal.SIGCONT)
                wait_for(has_ended, "the worker with the agent to run the session")
        assert not Event.objects.filter(session=session, kind="changed").exists()
        assert not published().exclude(problem="").exists()
