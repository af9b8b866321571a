"""Why a run stops, or went on, is known after a kill: what hooks and tools set and read of it is as in a plain run."""

from collections.abc import Callable, Iterator
from typing import Annotated, Any

import pytest
from haystack.components.agents import Agent
from haystack.components.agents.state import State
from haystack.components.agents.state.state import replace_values
from haystack.dataclasses import ChatMessage, ToolCall
from haystack.hooks import hook
from haystack.tools import tool

from agentstate import DurableAgent, ToolPolicy
from agentstate.durable.agent import make_durable
from agentstate.journals import MemoryJournal
from tests import sample_agents
from tests.sample_agents import scripted
from tests.test_durable_run import comparable, killed_at

REASONS = {"reasons": {"type": list}}


@pytest.fixture(autouse=True)
def _no_effects() -> Iterator[None]:
    sample_agents.effects.clear()
    yield
    sample_agents.effects.clear()


@hook
def over_budget(state: State) -> None:
    state.set("stop_run", "over_budget")


@hook
def insist_once(state: State) -> None:
    if state.data["step_count"] < 2:
        state.set("messages", [ChatMessage.from_system("Save it first.")])
        state.set("continue_run", True)


@hook
def note_reason(state: State) -> None:
    state.set("reasons", [str(state.data.get("exit_reason"))])


@tool
def give_up(why: Annotated[str, "why"], state: State) -> str:
    """Stop the run."""
    state.set("stop_run", why)
    return "stopped"


def stopped_before_it_begins() -> Agent:
    return Agent(chat_generator=scripted("Hello."), hooks={"before_run": [over_budget]})


def stopped_by_a_tool() -> Agent:
    calls = [ToolCall("give_up", {"why": "no_stock"}, id="g1")]
    return Agent(chat_generator=scripted(calls, "Hello."), tools=[give_up])


def sent_on() -> Agent:
    return Agent(
        chat_generator=scripted("Done.", [ToolCall("save", {"content": "it"}, id="s1")], "Saved."),
        tools=[sample_agents.save],
        state_schema=REASONS,
        hooks={"on_exit": [insist_once], "before_llm": [note_reason]},
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "build, reason",
    [
        (stopped_before_it_begins, "over_budget"),
        (stopped_by_a_tool, "no_stock"),
        (sent_on, "text"),
    ],
)
@pytest.mark.parametrize("committed", [False, True], ids=["before the commit", "after the commit"])
def test_a_run_that_was_killed_at_any_write_ends_for_the_same_reason(
    build: Callable[[], Agent], reason: str, committed: bool
) -> None:
    plain: dict[str, Any] = build().run([ChatMessage.from_user("hi")])
    assert plain["exit_reason"] == reason
    policies = {name: ToolPolicy(idempotent=True) for name in plain["tool_call_counts"]}
    durable = make_durable(build(), policies=policies)
    number, died = 0, True
    while died:
        number += 1
        died, outcome = killed_at(number, committed, durable, {})
        assert outcome.result is not None, f"write {number}: {outcome.why}"
        assert comparable(outcome.result) == comparable(plain), f"write {number}"
    assert number > 2


def test_the_answer_on_record_of_a_turn_without_messages_has_the_same_keys() -> None:
    @hook
    def forget(state: State) -> None:
        state.set("messages", [], handler_override=replace_values)

    agent = Agent(chat_generator=scripted("Hello."), hooks={"after_run": [forget]})
    session = DurableAgent(agent, MemoryJournal.open())
    first = session.run("hi", key="one")
    assert session.run("hi", key="one").result == first.result
    assert "last_message" not in first.result
