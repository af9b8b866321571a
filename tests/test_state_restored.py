"""After a restart the State holds what tools and hooks wrote there, also None and keys beside the schema."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from haystack.components.agents import Agent
from haystack.components.agents.state import State
from haystack.components.generators.chat import MockChatGenerator
from haystack.dataclasses import ChatMessage, ToolCall
from haystack.hooks import hook
from haystack.tools import tool

from agentstate import ToolPolicy
from agentstate.durable.agent import make_durable
from agentstate.durable.run import run
from tests.adapters import Adapter, FileAdapter, MemoryAdapter, OrmAdapter
from tests.dying import Died

ADAPTERS = ["memory", "file", pytest.param("orm", marks=pytest.mark.django_db)]
INPUTS = {"state": {"basket": "apples"}}


@pytest.fixture(params=ADAPTERS)
def adapter(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Adapter]:
    adapters: dict[str, Callable[[], Adapter]] = {
        "memory": lambda: MemoryAdapter(INPUTS),
        "file": lambda: FileAdapter(tmp_path / "session.jsonl", INPUTS),
        "orm": lambda: OrmAdapter(INPUTS),
    }
    adapter: Adapter = adapters[request.param]()
    yield adapter
    adapter.close()


@tool
def empty_basket(state: State) -> str:
    """Empties the basket."""
    state.set("basket", None)
    state.data["beside"] = "by a tool"
    return "emptied"


@hook
def note(state: State) -> None:
    state.data["foo"] = "bar"


def shop(dying: list[bool]) -> Agent:
    """An agent whose second tool dies once, in the step in which the first one has written to the State."""

    @tool
    def wait(state: State) -> str:
        """Waits."""
        if dying and dying.pop():
            raise Died
        return f"{state.get('basket')}, {state.get('beside')}, {state.get('foo')}"

    def reply(messages: list[ChatMessage], tools: object = None) -> ChatMessage:
        if messages[-1].is_from("user"):
            calls = [ToolCall("empty_basket", {}, id="c1"), ToolCall("wait", {}, id="c2")]
            return ChatMessage.from_assistant(tool_calls=calls)
        return ChatMessage.from_assistant(str(messages[-1].tool_call_results[0].result))

    return Agent(
        chat_generator=MockChatGenerator(response_fn=reply),
        tools=[empty_basket, wait],
        state_schema={"basket": {"type": str}},
        tool_concurrency_limit=1,
        hooks={"before_llm": [note]},
    )


@pytest.mark.parametrize("dies", [False, True], ids=["undisturbed", "killed"])
def test_none_and_keys_beside_the_schema_are_there_after_a_restart(adapter: Adapter, dies: bool) -> None:
    durable = make_durable(shop([True] if dies else []), policies={"wait": ToolPolicy(idempotent=True)})
    journal = adapter.open(say="go")
    if dies:
        with pytest.raises(Died):
            run(durable, journal)
        journal = adapter.open()
    result: dict[str, Any] | None = run(durable, journal).result
    assert result is not None
    assert result["last_message"].text == "None, by a tool, bar"
    assert (result["basket"], result["beside"], result["foo"]) == (None, "by a tool", "bar")
