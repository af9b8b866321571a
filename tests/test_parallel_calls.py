"""Calls of one step run beside each other as in a plain run, also after a kill; so do runs of one durable agent."""

import asyncio
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, cast

import pytest
from haystack.components.agents import Agent
from haystack.dataclasses import ToolCall
from haystack.tools import Tool

import agentstate
from agentstate import DurableAgent, ToolPolicy
from agentstate.durable.agent import make_durable
from agentstate.durable.doubts import in_doubt
from agentstate.durable.records import CallRecord
from agentstate.durable.run import run, run_async
from agentstate.durable.run_context import RunContext
from agentstate.durable.tools import match_call
from agentstate.journals import MemoryJournal
from agentstate.names import CallState
from tests import sample_agents
from tests.sample_agents import scripted
from tests.test_durable_run import killed_at

pytestmark = pytest.mark.usefixtures("no_effects")

SECONDS = 5.0


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


@pytest.mark.parametrize("write", [1, 2])
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


# After a kill the calls that had ended are replayed beside those that run


class AtOnce:
    """A tool that notes how many of its calls run at once; each lasts until the limit is reached, or a moment."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.most = 0
        self._running = 0
        self._condition = threading.Condition()

    def __call__(self, n: int) -> str:
        with self._condition:
            self._running += 1
            self.most = max(self.most, self._running)
            self._condition.notify_all()
            self._condition.wait_for(lambda: self.most >= self.limit, SECONDS)
            self._running -= 1
        return f"counted {n}"

    def agent(self) -> Agent:
        parameters = {"type": "object", "properties": {"n": {"type": "integer"}}}
        tool = Tool(name="tick", description="Counts.", parameters=parameters, function=self.__call__)
        calls = [ToolCall("tick", {"n": n}, id=f"t{n}") for n in range(6)]
        return Agent(chat_generator=scripted(calls, "Over."), tools=[tool], tool_concurrency_limit=self.limit)


@pytest.mark.parametrize("limit", [1, 3])
@pytest.mark.parametrize("write", [None, 3, 6])
def test_no_more_calls_run_at_once_than_the_limit_allows_also_after_a_kill(
    limit: int, write: int | None
) -> None:
    tick = AtOnce(limit)
    durable = make_durable(tick.agent(), policies={"tick": ToolPolicy(idempotent=True)})
    died, outcome = killed_at(write or 0, True, durable, {})
    assert died is (write is not None)
    assert tick.most == limit
    assert outcome.result is not None
    texts = [result.result for message in outcome.result["messages"] for result in message.tool_call_results]
    assert texts == [f"counted {n}" for n in range(6)]


@pytest.mark.parametrize("write", [None, 1, 2, 3, 4])
def test_two_equal_calls_in_two_threads_are_two_calls_each_with_its_key(write: int | None) -> None:
    keys: list[str] = []
    barrier = threading.Barrier(2)

    def pay(order: str) -> str:
        if write is None:
            barrier.wait(SECONDS)  # undisturbed, they do run in two threads
        keys.append(agentstate.idempotency_key())
        return f"paid {order}"

    parameters = {"type": "object", "properties": {"order": {"type": "string"}}}
    tool = Tool(name="pay", description="Pays.", parameters=parameters, function=pay)
    calls = [ToolCall("pay", {"order": "A1"}), ToolCall("pay", {"order": "A1"})]
    agent = Agent(chat_generator=scripted(calls, "Over."), tools=[tool])
    durable = make_durable(agent, policies={"pay": ToolPolicy(idempotent=True)})

    _, outcome = killed_at(write or 0, True, durable, {})

    assert outcome.status == "idle"
    assert len(set(keys)) == 2
    assert len(keys) <= 3


def test_a_call_is_not_taken_for_another_one_whose_arguments_only_python_holds_for_equal() -> None:
    values: list[Any] = [True, 1, 1.0, [True], [1]]
    calls = [
        CallRecord(number, f"c{number}", "show", {"value": value}, f"k{number}")
        for number, value in enumerate(values)
    ]
    run = cast(RunContext, SimpleNamespace(lock=threading.Lock(), unmatched_calls=calls[::-1]))

    # Threads of one step begin in any order.
    matched = [match_call(run, "show", {"value": value}) for value in values]

    assert matched == calls


@pytest.mark.slow
def test_a_call_that_waits_for_one_that_had_ended_is_ended_by_its_time_limit() -> None:
    """The finished call does not run again, so nobody else comes to the barrier."""
    barrier = threading.Barrier(2)
    policy = ToolPolicy(idempotent=True, timeout=0.5)
    durable = make_durable(meeting(barrier), policies={"meet": policy})
    died, outcome = killed_at(3, True, durable, {})  # the first of the two calls to end was committed
    assert died
    assert outcome.result is not None
    texts = [result.result for message in outcome.result["messages"] for result in message.tool_call_results]
    assert sorted("did not answer within 0.5 seconds" in text for text in texts) == [False, True]


def test_two_threads_that_run_one_session_follow_each_other() -> None:
    session = DurableAgent(sample_agents.long_run(2), MemoryJournal.open())
    with ThreadPoolExecutor(2) as executor:
        outcomes = list(executor.map(session.run, ["one", "two"]))
    assert [outcome.text for outcome in outcomes] == ["Long done.", "Long done."]
    asked = [message.text for message in session.history() if message.is_from("user")]
    assert set(asked) == {"one", "two"}
    assert Counter(sample_agents.effects) == Counter(
        {"model(0)": 2, "fast(q0)": 2, "model(1)": 2, "fast(q1)": 2, "model(2)": 2}
    )


def test_several_calls_in_doubt_are_named_together() -> None:
    calls = [
        CallRecord(n, f"c{n}", tool, {}, f"k{n}", CallState.STARTED)
        for n, tool in enumerate(["pay", "mail", "pay", "book"])
    ]
    end = in_doubt(calls, may_run_again=lambda tool: False)
    assert end is not None
    assert end.why == (
        "book, mail and pay were started and did not report back. They may or may not have taken effect."
    )


def waiting_twice(event: threading.Event) -> Agent:
    """An agent whose two tools, both called in one step, wait for the event."""
    parameters = {"type": "object", "properties": {}}
    tools = [
        Tool(
            name=name, description="Waits.", parameters=parameters, function=lambda: str(event.wait(SECONDS))
        )
        for name in ("mail", "pay")
    ]
    calls = [ToolCall("pay", {}, id="p"), ToolCall("mail", {}, id="m")]
    return Agent(chat_generator=scripted(calls, "Over."), tools=tools)


@pytest.mark.parametrize("begin", [run, lambda *given: asyncio.run(run_async(*given))], ids=["sync", "async"])
def test_all_calls_that_exceed_their_limits_are_in_doubt_at_once(begin: Any) -> None:
    event = threading.Event()
    policies = {"mail": ToolPolicy(timeout=0.2), "pay": ToolPolicy(timeout=0.1)}
    journal = MemoryJournal.open(say="hi")
    outcome = begin(make_durable(waiting_twice(event), policies=policies), journal)
    event.set()
    assert outcome.why == (
        "mail did not answer within 0.2 seconds. pay did not answer within 0.1 seconds. "
        "They may or may not have taken effect."
    )
    assert {call.status for call in journal.store.calls.values()} == {CallState.DOUBT}
