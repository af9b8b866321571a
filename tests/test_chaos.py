"""Whatever is killed, at any time: each session ends as the undisturbed one does, and nothing is done twice.

What was done to the sessions, and how often, is printed at the end of the run.
"""

import random
import time
from uuid import UUID

import pytest

from tests.chaos import (
    BrokerTrouble,
    Person,
    Strikes,
    Workers,
    celery,
    chaos_environment,
    see_through,
)
from tests.chaos_agents import INPUTS
from tests.chaos_checks import check, plainly, tally
from tests.chaos_moments import VARIABLE, moments
from tests.databases import connected
from tools.processes import MANAGE

UP = (*MANAGE, "up", "--port", "0", "--no-demo")
# Each waits for its sessions by itself, on a machine that has other work too.
pytestmark = [pytest.mark.slow, pytest.mark.chaos, pytest.mark.timeout(1200)]


@pytest.fixture(autouse=True)
def _may_use_any_database(django_db_blocker):
    with django_db_blocker.unblock():
        yield


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where agents and journals leave their record."""
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    return tmp_path


@pytest.fixture(params=["postgres", "sqlite"])
def url(request, new_database):
    return new_database(request.param)


@pytest.fixture
def tell(record_property):
    """Adds rows to the table that is printed at the end of the run."""
    began = time.monotonic()
    rows: dict[str, int] = {}
    yield rows.update
    record_property("table", {**rows, "seconds": round(time.monotonic() - began)})


# Every step a slice of its own on SQLite: sessions are handed over at each checkpoint.
@pytest.mark.parametrize(
    "url, agents, slice_seconds",
    [
        ("postgres", ("desk", "long", "quick"), "20"),
        ("sqlite", ("desk", "quick"), "0.001"),
    ],
    indirect=["url"],
    ids=["postgres", "sqlite"],
)
@pytest.mark.long
def test_killed_at_every_moment(url, agents, slice_seconds, redis_server, redis_url, folder, tell):
    plain = {agent: plainly(agent) for agent in agents}
    env = chaos_environment(
        url,
        folder,
        REDIS_URL=redis_url,
        AGENTSTATE_SLICE_SECONDS=slice_seconds,
        AGENTSTATE_TEST_GIVES_WAY="" if slice_seconds == "20" else "1",
    )
    person = Person()
    with connected(url), Workers(celery(concurrency=8), env) as workers:
        workers.wait_until_ready()
        undisturbed = see_through([(agent, "undisturbed") for agent in agents], person, seconds=120)
        for session, agent in undisturbed.items():
            check(session, plain[agent])
            starts = {line["what"] for line in moments(session) if line["name"] == "start_call"}
            assert bool(starts) is (agent != "quick")
        deaths = [
            (agent, f"die at {number}")
            for session, agent in undisturbed.items()
            for number in range(1, len(moments(session)) + 1)
        ]
        trouble = BrokerTrouble(redis_server, every=5)
        sessions = see_through(deaths, person, workers.keep, trouble)
        tell(tally(sessions, person.decided, trouble.done))
        for session, agent in sessions.items():
            check(session, plain[agent])
            assert sum("struck" in line for line in moments(session)) == 1
    assert not workers.replaced, "A worker did not outlive its child or its broker:\n" + "\n".join(
        workers.replaced
    )


@pytest.mark.long
def test_killed_at_random(url, redis_server, redis_url, folder, tell):
    plain = {agent: plainly(agent) for agent in INPUTS}
    env = chaos_environment(
        url,
        folder,
        REDIS_URL=redis_url,
        AGENTSTATE_SLICE_SECONDS="0.5",
        AGENTSTATE_TEST_PACE="0.1",
        AGENTSTATE_TEST_GIVES_WAY="1",
    )
    dice = random.Random(2026)
    person = Person(dice)
    with connected(url), Workers(celery(), env) as workers:
        workers.wait_until_ready()
        trouble = BrokerTrouble(redis_server, every=3)
        strikes = Strikes(workers, dice, child=24, worker=2, parent=1, beat=1)
        crowd = [(agent, f"{agent} {n}") for n in range(9) for agent in plain]
        sessions = see_through(crowd, person, workers.keep, trouble, strikes, at_once=8)
        replaced = {"processes replaced": len(workers.replaced)}
        tell(tally(sessions, strikes.done, person.decided, trouble.done, replaced))
        for session, agent in sessions.items():
            check(session, plain[agent])
    assert strikes.left == []


# Each of these ends the one process that runs everything, or a moment not far from it: calls run in parallel, and
# what the process has not noted when another session ends it is not noted later.
ENDS = (
    ("desk", "inside", "reply"),
    ("long", "after", "start_call"),
    ("desk", "effect", "pay"),
    ("quick", "after", "reply"),
    ("long", "inside", "checkpoint"),
)


def test_everything_in_one_process_killed_and_started_again(new_database, folder, tell, tmp_path):
    plain = {agent: plainly(agent) for agent in INPUTS}
    url = new_database("sqlite")
    env = chaos_environment(url, folder, STATIC_ROOT=str(tmp_path / "static"))
    person = Person()
    with connected(url), Workers([UP], env) as up:
        up.wait_until_ready()
        undisturbed = see_through([(agent, "undisturbed") for agent in plain], person, seconds=120)
        deaths = [
            (agent, f"die at {_in_the_middle(session, *end)}")
            for session, agent in undisturbed.items()
            for of, *end in ENDS
            if of == agent
        ]
        crowd = [(agent, f"beside them {n}") for n in range(2) for agent in plain]
        sessions = see_through([*deaths, *crowd], person, up.keep)
        tell(tally(sessions, person.decided, {"started again": len(up.replaced)}))
        for session, agent in sessions.items():
            check(session, plain[agent])
    assert len(up.replaced) == len(ENDS)


def _in_the_middle(session: UUID, what: str, name: str) -> int:
    """The number of the middle one of these moments: one that the session reaches also if it notes some fewer."""
    numbers: list[int] = [
        line["n"] for line in moments(session) if (line["what"], line["name"]) == (what, name)
    ]
    return numbers[len(numbers) // 2]
