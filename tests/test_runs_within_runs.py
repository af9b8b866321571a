"""A tool or a hook cannot run the session that runs it; it can run another one."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from haystack.components.agents import Agent
from haystack.components.agents.state import State
from haystack.dataclasses import ToolCall
from haystack.hooks import hook
from haystack.tools import Tool

from agentstate import DurableAgent, Failed, SessionInUse
from agentstate.journals import MemoryJournal
from tests import sample_agents
from tests.sample_agents import scripted

pytestmark = pytest.mark.usefixtures("no_effects")

REFUSED = "The session 'anna' is being run, and this call comes from one of its own tools or hooks"
SCHEMA: dict[str, Any] = {"type": "object", "properties": {}}


def calling(function: Callable[[], Any]) -> Agent:
    """An agent with a tool that calls the function."""
    it = Tool(name="it", description="", parameters=SCHEMA, function=function)
    return Agent(chat_generator=scripted([ToolCall("it", {}, id="c1")], "Over."), tools=[it])


def told(outcome: Any) -> str:
    [result] = [result for message in outcome.result["messages"] for result in message.tool_call_results]
    return str(result.result)


WAYS: dict[str, Callable[[DurableAgent, Path], Any]] = {
    "run": lambda own, _: own.run("again"),
    "resume": lambda own, _: own.resume(),
    "decide": lambda own, _: own.decide("c1", again=True),
    "run_async": lambda own, _: asyncio.run(own.run_async("again")),
    "another object for it": lambda _, path: DurableAgent(sample_agents.plain_talk(), path).run("again"),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_tool_that_runs_its_own_session_is_told_at_once_that_it_cannot(tmp_path: Path, way: str) -> None:
    path = tmp_path / "anna.jsonl"
    own = DurableAgent(calling(lambda: WAYS[way](own, path)), path)
    outcome = own.run("hi")
    assert REFUSED in told(outcome)
    assert outcome.text == "Over."
    assert own.run("and then?").finished


def test_so_is_one_of_a_session_in_memory_and_one_that_comes_back_to_it_by_another_session() -> None:
    journal = MemoryJournal.open(session_id="anna")
    inner = DurableAgent(
        calling(lambda: DurableAgent(sample_agents.plain_talk(), journal).run("again").text),
        MemoryJournal.open(),
    )
    outer = DurableAgent(calling(lambda: told(inner.run("hi"))), journal)
    assert REFUSED in told(outer.run("hi"))


def test_an_asynchronous_run_refuses_it_too(tmp_path: Path) -> None:
    own = DurableAgent(calling(lambda: own.run("again").text), tmp_path / "anna.jsonl")
    outcome = asyncio.run(own.run_async("hi"))
    assert REFUSED in told(outcome)


def test_a_hook_that_runs_its_own_session_fails_the_turn_with_the_reason(tmp_path: Path) -> None:
    @hook
    def comes_back(state: State) -> None:
        own.run("again")

    agent = Agent(chat_generator=scripted("Hello."), hooks={"before_llm": [comes_back]})
    own = DurableAgent(agent, tmp_path / "anna.jsonl")
    outcome = own.run("hi")
    assert isinstance(outcome, Failed)
    assert REFUSED in outcome.why


def test_a_tool_may_run_another_session_and_read_its_own(tmp_path: Path) -> None:
    other = DurableAgent(sample_agents.plain_talk(), tmp_path / "bob.jsonl")

    def asks_another() -> str:
        return f"{other.run('hi').text} {len(own.pending())} {len(own.checkpoints())}"

    own = DurableAgent(calling(asks_another), tmp_path / "anna.jsonl")
    assert told(own.run("hi")) == "Hello. 0 1"
    assert other.run("again").text == "Hello."


def test_what_a_run_began_and_outlives_it_may_run_the_session(tmp_path: Path) -> None:
    async def script() -> tuple[str, list[str | BaseException]]:
        ended = asyncio.Event()

        async def later() -> str:
            await ended.wait()
            return (await own.run_async("later")).text

        tasks: list[asyncio.Task[str]] = []

        async def begins() -> str:
            tasks.append(asyncio.create_task(later()))
            return "begun"

        it = Tool(name="it", description="", parameters=SCHEMA, function=lambda: "", async_function=begins)
        agent = Agent(chat_generator=scripted([ToolCall("it", {}, id="c1")], "Over.", "Later."), tools=[it])
        own = DurableAgent(agent, tmp_path / "anna.jsonl")
        first = (await own.run_async("hi")).text
        ended.set()
        await tasks[0]
        return first, await asyncio.gather(*tasks, return_exceptions=True)

    # The run of the task calls the tool again, and what that begins is within a run that has not ended.
    first, (outlived, within) = asyncio.run(script())
    assert (first, outlived) == ("Over.", "Over.")
    assert isinstance(within, SessionInUse)


def test_the_refusal_is_an_error_of_its_own(tmp_path: Path) -> None:
    refusals: list[BaseException] = []

    def tries() -> str:
        with pytest.raises(SessionInUse) as refused:
            own.run("again")
        refusals.append(refused.value)
        return "caught"

    own = DurableAgent(calling(tries), tmp_path / "anna.jsonl")
    assert told(own.run("hi")) == "caught"
    assert len(refusals) == 1
