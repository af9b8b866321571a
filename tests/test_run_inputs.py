"""What a run is given reaches the agent as in a plain run, or is refused with the reason."""

from collections.abc import Iterator
from typing import Any

import pytest
from haystack.components.agents import Agent
from haystack.components.agents.state import State
from haystack.components.generators.chat import MockChatGenerator
from haystack.dataclasses import ChatMessage, StreamingChunk
from haystack.hooks import hook
from haystack.tools import Tool

from agentstate.durable.agent import make_durable
from agentstate.durable.registry import AgentBuildFailed
from agentstate.durable.run import Options, run
from agentstate.journals import MemoryJournal
from tests import sample_agents
from tests.sample_agents import effects
from tests.test_durable_run import comparable


@pytest.fixture(autouse=True)
def _no_effects() -> Iterator[None]:
    sample_agents.effects.clear()
    yield
    sample_agents.effects.clear()


def test_an_agent_with_a_prompt_of_its_own_begins_without_a_message_and_does_so_once() -> None:
    plain = sample_agents.prompted().run([], who="Ann")
    durable = make_durable(sample_agents.prompted())
    journal = MemoryJournal.open(inputs={"state": {"who": "Ann"}})
    outcome = run(durable, journal)
    assert outcome.result is not None, outcome.why
    assert comparable(outcome.result) == comparable(plain)
    effects.clear()
    assert run(durable, MemoryJournal.open(journal.store)).result is None
    assert effects == []


def test_no_tools_are_none_of_the_agents_tools() -> None:
    plain = sample_agents.attentive().run([ChatMessage.from_user("hi")], tools=[], generation_kwargs={})
    outcome = run(
        make_durable(sample_agents.attentive()),
        MemoryJournal.open(say="hi", inputs={"tools": [], "generation_kwargs": {}}),
    )
    assert outcome.result is not None, outcome.why
    assert comparable(outcome.result) == comparable(plain)


def test_a_streaming_callback_and_a_hook_context_reach_the_run() -> None:
    @hook
    def greet(state: State) -> None:
        seen.append(state.data["hook_context"]["channel"])

    seen: list[Any] = []
    chunks: list[str] = []
    channel = object()

    def callback(chunk: StreamingChunk) -> None:
        chunks.append(chunk.content)

    agent = Agent(chat_generator=MockChatGenerator("Hello there."), hooks={"before_run": [greet]})
    options = Options(streaming_callback=callback, hook_context={"channel": channel})
    assert run(make_durable(agent), MemoryJournal.open(say="hi"), options).status == "idle"
    assert "".join(chunks) == "Hello there."
    assert seen == [channel]


async def answer(q: str) -> str:
    return q


async def stream(chunk: StreamingChunk) -> None:
    pass


def only_async_tool() -> Tool:
    parameters = {"type": "object", "properties": {"q": {"type": "string"}}}
    return Tool(name="later", description="later", parameters=parameters, async_function=answer)


@hook
async def look(state: State) -> None:
    pass


@pytest.mark.parametrize(
    "options, part",
    [
        ({"tools": [only_async_tool()]}, "the tool 'later'"),
        ({"hooks": {"before_llm": [look]}}, "a before_llm hook"),
        ({"streaming_callback": stream}, "the streaming_callback"),
    ],
    ids=["tool", "hook", "callback"],
)
def test_parts_that_are_async_only_are_refused_with_the_reason(options: dict[str, Any], part: str) -> None:
    agent = Agent(chat_generator=MockChatGenerator("Hello."), **options)
    with pytest.raises(AgentBuildFailed, match=f"async only, which durable runs cannot use: {part}\\."):
        make_durable(agent, key="shop")
