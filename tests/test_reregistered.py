"""An agent that one registered factory gets from another: what its first registration says still holds."""

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
from haystack.components.agents import Agent
from haystack.tools import AgentTool

from agentstate import Breakpoint, DurableAgent, ToolPolicy, Waiting, agent
from agentstate.durable.agent import build, describe, make_durable
from agentstate.durable.registry import AgentBuildFailed, registration_of, registry
from agentstate.journals import MemoryJournal
from tests import sample_agents

pytestmark = pytest.mark.usefixtures("no_effects", "own_registry")

APPROVED = {"refund": ToolPolicy(approval=True, effect="moves money")}


def refund_desk() -> Callable[[], Agent]:
    @agent("refund-desk", policies=APPROVED, breakpoints=[Breakpoint("fast", when=("q", "=", "never"))])
    def refund_desk() -> Agent:
        return sample_agents.refunds()

    return refund_desk


def registered_again(factory: Callable[[], Agent], **options: Any) -> Callable[[], Agent]:
    @agent("again", **options)
    def again() -> Agent:
        return factory()

    return again


def test_an_agent_that_is_registered_again_still_asks_before_the_calls_of_its_first_registration() -> None:
    again = registered_again(refund_desk())
    for session in (
        DurableAgent(again(), MemoryJournal.open()),
        DurableAgent.of("again", MemoryJournal.open()),
    ):
        outcome = session.run("hi")
        assert isinstance(outcome, Waiting)
        assert {(call.tool, call.effect) for call in outcome.pending} == {("refund", "moves money")}
    assert [effect for effect in sample_agents.effects if effect.startswith("refund")] == []


def test_an_agent_that_is_registered_again_is_not_run_inside_a_tool_past_its_approval() -> None:
    inner = registered_again(registered_again(refund_desk()))()
    helper = AgentTool(agent=inner, name="helper", description="asks for refunds")
    with pytest.raises(AgentBuildFailed, match="runs an agent with the tool 'refund', which needs approval"):
        make_durable(Agent(chat_generator=sample_agents.scripted("Done."), tools=[helper]))


def test_a_policy_that_the_outer_registration_states_replaces_the_one_inside() -> None:
    stated = {"refund": ToolPolicy(idempotent=True), "fast": ToolPolicy(cache_ttl=60)}
    again = registered_again(refund_desk(), policies=stated)
    assert build(registry.get("again")).policies == stated
    assert describe(registry.get("again")).policies == stated
    assert make_durable(again()).policies == stated
    assert build(registry.get("refund-desk")).policies == APPROVED


def test_the_breakpoints_of_all_registrations_hold_and_each_has_all_else_of_its_own() -> None:
    own = [Breakpoint("refund"), Breakpoint("fast", when=("q", "=", "never"))]
    again = registered_again(refund_desk(), breakpoints=own, title="Again", run_async=True)
    durable = build(registry.get("again"))
    assert (durable.breakpoints, durable.runs_async) == ((own[1], own[0]), True)
    registration = registration_of(again())
    assert registration is not None
    assert (registration.key, registration.title) == ("again", "Again")
    assert build(registry.get("refund-desk")).runs_async is False


def test_factories_that_keep_their_agent_have_the_same_policies_each_time() -> None:
    inner = agent("kept", policies=APPROVED)(cache(sample_agents.refunds))
    outer = agent("outer", policies={"fast": ToolPolicy(idempotent=True)})(cache(inner))
    for _ in range(2):
        assert make_durable(outer()).policies == {**APPROVED, "fast": ToolPolicy(idempotent=True)}
    assert outer() is inner()
    assert make_durable(inner()).policies == APPROVED
    assert set(make_durable(outer()).policies) == {"fast", "refund"}
