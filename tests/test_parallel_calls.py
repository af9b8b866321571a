"""Calls of one step run beside each other as in a plain run, also after a kill; so do runs of one durable agent."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from haystack.components.agents import Agent
from haystack.dataclasses import ToolCall
from haystack.tools import Tool

from agentstate import ToolPolicy
from agentstate.durable.agent import make_durable
from agentstate.durable.run import run
from agentstate.journals import MemoryJournal
from tests import sample_agents
from tests.sample_agents import scripted
from tests.test_durable_run import killed_at

SECONDS = 5.0


@pytest.fixture(autouse=True)
def _no_effects() -> Iterator[None]:
    sample_agents.effects.clear()
    yield
    sample_agents.effects.clear()


def meeting(barrier: threading.Barrier) -> Agent:
    """An agent whose two calls of one step wait for each other."""

    def meet(name: str) -> str:
        barrier.wait(SECONDS)
        return f"{name} was met"

    parameters = {"type": "object", "properties": {"name": {"type": "string"}}}
    tool = Tool(name="meet", description="Meets.", parameters=parameters, function=meet)
    calls = [ToolCall("meet", {"name": "Ann"}, id="m1"), ToolCall("meet", {"name": "Bob"}, id="m2")]
    return Agent(chat_generator=scripted(calls, "Over."), tools=[tool])


def results(journal: MemoryJournal) -> list[str]:
    return [call.result for call in journal.store.calls.values()]


def test_calls_that_wait_for_each_other_meet() -> None:
    journal = MemoryJournal.open(say="hi")
    assert run(make_durable(meeting(threading.Barrier(2))), journal).status == "idle"
    assert results(journal) == ["Ann was met", "Bob was met"]


@pytest.mark.parametrize("write", [1, 2, 3])
def test_they_meet_after_a_kill_before_any_of_them_has_ended(write: int) -> None:
    durable = make_durable(meeting(threading.Barrier(2)), policies={"meet": ToolPolicy(idempotent=True)})
    died, outcome = killed_at(write, True, durable, {})
    assert died
    assert outcome.result is not None
    texts = [result.result for message in outcome.result["messages"] for result in message.tool_call_results]
    assert texts == ["Ann was met", "Bob was met"]


def test_one_durable_agent_serves_several_runs_at_once() -> None:
    durable = make_durable(sample_agents.long_run(5), policies={"fast": ToolPolicy(idempotent=True)})
    journals = [MemoryJournal.open(say="hi", session_id=str(number)) for number in range(8)]
    with ThreadPoolExecutor(8) as executor:
        outcomes = list(executor.map(lambda journal: run(durable, journal), journals))
    assert {outcome.status for outcome in outcomes} == {"idle"}
    for journal in journals:
        assert [call.result for call in journal.store.calls.values()] == [f"fast:q{n}" for n in range(5)]
        assert journal.store.outcome["final_answer"] == "Long done."
