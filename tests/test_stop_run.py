"""A hook or a tool that stops the run, or a hook that lets it go on after all, does what it does in a plain run."""

from collections.abc import Callable
from typing import Any, cast

import pytest
from haystack.components.agents import Agent
from haystack.components.agents.state import State
from haystack.dataclasses import ChatMessage, ToolCall
from haystack.hooks import hook

from agentstate import Breakpoint, DurableAgent, ToolPolicy
from agentstate.durable.agent import make_durable
from agentstate.journals import MemoryJournal
from tests import sample_agents
from tests.sample_agents import effect, effects, fast, scripted
from tests.test_durable_run import comparable, killed_at

pytestmark = pytest.mark.usefixtures("no_effects")

IDEMPOTENT = {"fast": ToolPolicy(idempotent=True)}


@hook
def enough(state: State) -> None:
    state.set("stop_run", "enough")


@hook
def go_on(state: State) -> None:
    state.set("stop_run", None)


@hook
def look(state: State) -> None:
    effect(f"look({state.data['step_count']})")
    state.set("seen", [state.data["step_count"]])
    state.set("messages", [ChatMessage.from_system(f"Step {state.data['step_count']}.")])


def stopped(**hooks: Any) -> Agent:
    """Every step calls a tool."""
    calls = [[ToolCall("fast", {"q": f"q{step}"}, id=f"c{step}")] for step in range(2)]
    return Agent(
        chat_generator=scripted(*calls, "Done."),
        tools=[fast],
        state_schema={"seen": {"type": list}},
        hooks=cast("Any", hooks),
    )


def stopped_after_a_tool() -> Agent:
    return stopped(after_tool=[enough], before_llm=[look])


def let_go_on() -> Agent:
    return stopped(after_tool=[enough], before_llm=[go_on, look])


def let_go_on_by_the_state_alone() -> Agent:
    return stopped(after_tool=[enough], before_llm=[go_on])


def stopped_at_the_start() -> Agent:
    return stopped(before_run=[enough], before_llm=[look])


@pytest.mark.slow
@pytest.mark.parametrize("committed", [False, True], ids=["before the commit", "after the commit"])
@pytest.mark.parametrize(
    "build", [stopped_after_a_tool, let_go_on, let_go_on_by_the_state_alone, stopped_at_the_start]
)
def test_hooks_before_the_model_run_as_in_a_plain_run_also_after_a_kill_at_any_write(
    build: Callable[[], Agent], committed: bool
) -> None:
    plain = build().run([ChatMessage.from_user("hi")])
    looks = [what for what in effects if what.startswith("look")]
    number, died = 0, True
    while died:
        number += 1
        sample_agents.effects.clear()
        died, outcome = killed_at(number, committed, make_durable(build(), policies=IDEMPOTENT), {})
        assert outcome.result is not None, f"write {number}: {outcome.why}"
        assert comparable(outcome.result) == comparable(plain), f"write {number}"
        assert set(looks) <= set(effects)
    assert [what for what in effects if what.startswith("look")] == looks
    assert number > 2


def test_a_breakpoint_before_the_model_does_not_stop_where_the_model_is_not_asked() -> None:
    outcome = DurableAgent(stopped_at_the_start(), MemoryJournal.open()).run("hi", break_point=Breakpoint())
    assert outcome.result["exit_reason"] == "enough"
    assert "model(0)" not in effects
