"""A tool call that a `before_tool` hook adds to the model's is held to the same policies as the model's own."""

from collections.abc import Callable
from typing import Any

import pytest
from haystack.components.agents import Agent
from haystack.components.agents.state import State
from haystack.components.agents.state.state import replace_values
from haystack.dataclasses import ChatMessage, ToolCall
from haystack.hooks import hook
from haystack.hooks.human_in_the_loop import AlwaysAskPolicy, BlockingConfirmationStrategy, ConfirmationHook

from agentstate import ToolPolicy
from agentstate.durable.agent import WrappedAgent, make_durable
from agentstate.durable.run import run
from agentstate.journals import MemoryJournal
from tests.sample_agents import _NoConsole, effects, fast, refund, scripted

pytestmark = pytest.mark.usefixtures("no_effects")

REFUND = {"order": "A1", "amount": 5.0}
ids = iter(f"hook-{number}" for number in range(1000))


def adding(next_id: Callable[[], str | None]) -> Any:
    """A hook that adds a refund to what the model asks for."""

    @hook
    def add_refund(state: State) -> None:
        last = state.data["messages"][-1]
        added = ChatMessage.from_assistant(
            text=last.text, tool_calls=[*last.tool_calls, ToolCall("refund", REFUND, id=next_id())]
        )
        state.set("messages", [*state.data["messages"][:-1], added], handler_override=replace_values)

    return add_refund


def agent(*hooks: Any) -> Agent:
    return Agent(
        tool_concurrency_limit=1,
        chat_generator=scripted([ToolCall("fast", {"q": "a"}, id="m1")], "Over."),
        tools=[fast, refund],
        hooks={"before_tool": list(hooks)},
    )


def by_policy(next_id: Callable[[], str | None]) -> WrappedAgent:
    return make_durable(agent(adding(next_id)), policies={"refund": ToolPolicy(approval=True)})


def by_confirmation(next_id: Callable[[], str | None]) -> WrappedAgent:
    strategy = BlockingConfirmationStrategy(
        confirmation_policy=AlwaysAskPolicy(), confirmation_ui=_NoConsole()
    )
    return make_durable(agent(adding(next_id), ConfirmationHook({"refund": strategy})))


@pytest.mark.parametrize("build", [by_policy, by_confirmation])
@pytest.mark.parametrize(
    "next_id",
    [lambda: "h1", lambda: None, lambda: "m1", lambda: next(ids)],
    ids=["an id", "no id", "the id of another call", "another id each time"],
)
def test_an_added_call_waits_for_approval_and_runs_once_when_it_is_given(
    build: Callable[[Callable[[], str | None]], WrappedAgent], next_id: Callable[[], str | None]
) -> None:
    durable = build(next_id)
    journal = MemoryJournal.open(say="hi")

    outcome = run(durable, journal)

    assert (outcome.status, journal.store.last_end["waiting_for"]) == ("waiting", "approval")
    assert "refund(A1,5)" not in effects
    [added] = [call for call in journal.store.step_calls() if call.tool == "refund"]

    journal = MemoryJournal.open(journal.store)
    journal.decide(added.call_id, approve=True)
    outcome = run(durable, journal)

    assert (outcome.status, outcome.why) == ("idle", "")
    assert [effect for effect in effects if not effect.startswith("model")] == ["fast(a)", "refund(A1,5)"]


def test_a_rejected_call_of_a_hook_never_runs() -> None:
    durable = by_policy(lambda: None)
    journal = MemoryJournal.open(say="hi")
    run(durable, journal)
    [added] = [call for call in journal.store.step_calls() if call.tool == "refund"]

    journal = MemoryJournal.open(journal.store)
    journal.decide(added.call_id, approve=False, message="Not this one.")

    assert run(durable, journal).status == "idle"
    assert [effect for effect in effects if not effect.startswith("model")] == ["fast(a)"]
