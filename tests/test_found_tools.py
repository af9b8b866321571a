"""The tools that a SearchableToolset has found are at hand after a restart, also where the search is forgotten."""

from collections.abc import Callable
from typing import Any

import pytest
from haystack.components.agents import Agent
from haystack.components.agents.state import State
from haystack.components.agents.state.state import replace_values
from haystack.components.generators.chat import MockChatGenerator
from haystack.dataclasses import ChatMessage, ToolCall
from haystack.hooks import hook
from haystack.tools import SearchableToolset

from agentstate import ToolPolicy
from agentstate.durable import found_tools
from agentstate.durable.agent import describe, make_durable
from agentstate.durable.memory import MEMORY_SCHEMA, memory_tools
from agentstate.durable.registry import Registration
from agentstate.durable.run import Options, run
from agentstate.journals import MemoryJournal
from tests import sample_agents
from tests.sample_agents import count, effect, effects, fast, fetch, slow
from tests.test_durable_run import comparable, killed_at

pytestmark = pytest.mark.usefixtures("no_effects")


@hook
def forget_the_search(state: State) -> None:
    """Keeps the user's message and the last step only."""
    messages = state.data["messages"]
    last = max((at for at, message in enumerate(messages) if message.is_from("assistant")), default=1)
    if last > 1:
        state.set("messages", [messages[0], *messages[last:]], handler_override=replace_values)


def model(messages: list[ChatMessage], tools: Any = None) -> ChatMessage:
    """Searches, then uses what was found, twice."""
    names = [tool.name for tool in tools]
    effect(f"model({','.join(names)})")
    results = [str(result.result) for message in messages for result in message.tool_call_results]
    last = results[-1] if results else ""
    if not last:
        call = ToolCall(names[0], {"tool_keywords": "answers at once", "k": 1}, id="s1")
    elif last.startswith("Found"):
        call = ToolCall("fast", {"q": "one"}, id="f1")
    elif last == "fast:one":
        call = ToolCall("fast", {"q": "two"}, id="f2")
    else:
        return ChatMessage.from_assistant("Over.")
    return ChatMessage.from_assistant(tool_calls=[call])


def searching(name: str = "search_tools", **options: Any) -> Agent:
    toolset = SearchableToolset([slow, count, fast, fetch], search_threshold=1, search_tool_name=name)
    return Agent(
        chat_generator=MockChatGenerator(response_fn=model),
        tools=toolset,
        state_schema={"docs": {"type": list}},
        **options,
    )


AGENTS: dict[str, Callable[[], Agent]] = {
    "its own name": searching,
    "another name": lambda: searching("find_tools"),
    "a context without the search": lambda: searching(hooks={"before_llm": [forget_the_search]}),
}


@pytest.fixture(params=list(AGENTS))
def build(request: pytest.FixtureRequest) -> Callable[[], Agent]:
    return AGENTS[request.param]


def plainly(build: Callable[[], Agent]) -> str:
    result = comparable(build().run([ChatMessage.from_user("hi")]))
    assert effects[-1].endswith(",fast)")
    sample_agents.effects.clear()
    return result


@pytest.mark.slow
def test_each_step_in_a_slice_of_its_own_has_the_tools_that_were_found(build: Callable[[], Agent]) -> None:
    plain = plainly(build)
    store = MemoryJournal.open(say="hi").store
    slices = Options(slice_is_over=lambda: True)
    outcome = run(make_durable(build()), MemoryJournal.open(store), slices)
    while outcome.status == "queued":
        outcome = run(make_durable(build()), MemoryJournal.open(store), slices)
    assert outcome.result is not None, outcome.why
    assert comparable(outcome.result) == plain


@pytest.mark.slow
@pytest.mark.parametrize("committed", [False, True], ids=["before the commit", "after the commit"])
def test_a_run_that_was_killed_at_any_write_has_them_too(build: Callable[[], Agent], committed: bool) -> None:
    plain = plainly(build)
    number, died = 0, True
    while died:
        number += 1
        durable = make_durable(build(), policies={"fast": ToolPolicy(idempotent=True)})
        died, outcome = killed_at(number, committed, durable, {})
        assert outcome.result is not None, f"write {number}: {outcome.why}"
        assert comparable(outcome.result) == plain, f"write {number}"
    assert number > 8


def test_a_run_whose_toolset_does_not_find_them_again_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryJournal.open(say="hi").store
    slices = Options(slice_is_over=lambda: True)
    for _ in range(2):
        run(make_durable(searching()), MemoryJournal.open(store), slices)
    monkeypatch.setattr(found_tools, "find_again", lambda *_: None)
    outcome = run(make_durable(searching()), MemoryJournal.open(store), slices)
    assert outcome.why == (
        "ToolsNotFoundAgain: After a restart the searchable toolset offers different tools than before: fast. "
        "Rewind the session to a step before the search."
    )


def test_tools_that_are_known_to_be_pure_are_idempotent_without_being_declared() -> None:
    def build() -> Agent:
        toolset = SearchableToolset([slow, fetch], search_threshold=1, search_tool_name="find_tools")
        return Agent(
            chat_generator=MockChatGenerator("Hello."),
            tools=[toolset, fast, *memory_tools()],
            state_schema=MEMORY_SCHEMA,
        )

    durable = make_durable(build(), policies={"take_note": ToolPolicy(approval=True)})
    assert {name for name, policy in durable.policies.items() if policy.idempotent} == {
        "find_tools",
        "make_plan",
        "complete_step",
    }
    shown = {
        tool["name"]: tool["policy"]["idempotent"] for tool in describe(Registration("a", "a", build)).tools
    }
    assert (shown["take_note"], shown["fast"]) == (True, False)
