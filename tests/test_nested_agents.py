"""An agent inside a tool: no approval that a policy asks for is skipped, and people are told that it runs there."""

import html
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from haystack import Pipeline
from haystack.components.agents import Agent
from haystack.dataclasses import ToolCall
from haystack.tools import AgentTool, ComponentTool, PipelineTool, SearchableToolset, Tool, Toolset, tool

from agentstate import DurableAgent, ToolPolicy, agent
from agentstate.durable.agent import make_durable
from agentstate.durable.registry import AgentBuildFailed
from agentstate.durable.run import run
from agentstate.journals import MemoryJournal
from sessions_app.models import RegisteredAgent
from tests import builders
from tests.driving import Desk
from tests.dying import Died
from tests.pages import text_at
from tests.sample_agents import effect, effects, fast, scripted

pytestmark = pytest.mark.usefixtures("no_effects", "own_registry")

APPROVED = {"pay": ToolPolicy(approval=True)}
COVERED = {"helper": ToolPolicy(approval=True)}


@tool
def pay(q: str) -> str:
    """Pays."""
    effect(f"pay({q})")
    return "paid"


def cashier(policies: dict[str, ToolPolicy] | None = None, tools: Any = None) -> Agent:
    """An agent that pays; a registered one if it has policies."""

    def build() -> Agent:
        """Pays."""
        replies = [ToolCall("pay", {"q": "inner"}, id="i1")], "Inner done."
        return Agent(chat_generator=scripted(*replies, name="inner"), tools=tools or [pay])

    return agent("cashier", policies=policies)(build)() if policies is not None else build()


def by_agent_tool(inner: Agent) -> Tool:
    return AgentTool(agent=inner, name="helper", description="asks the cashier")


def by_component_tool(inner: Agent) -> Tool:
    return ComponentTool(component=inner, name="helper", description="asks the cashier")


def by_method(inner: Agent) -> Tool:
    return Tool(name="helper", description="asks the cashier", parameters={}, function=inner.run)


def by_pipeline(inner: Agent) -> Tool:
    pipeline = Pipeline()
    pipeline.add_component("cashier", inner)
    schema = {"type": "object", "properties": {}}
    return PipelineTool(pipeline=pipeline, name="helper", description="asks the cashier", parameters=schema)


def by_another_agent(inner: Agent) -> Tool:
    return by_agent_tool(Agent(chat_generator=scripted("."), tools=[by_agent_tool(inner)]))


def asking(tools: Any) -> Agent:
    replies = [ToolCall("helper", {"messages": [{"role": "user", "content": "pay"}]}, id="h1")], "Done."
    return Agent(chat_generator=scripted(*replies, name="outer"), tools=tools)


@pytest.mark.slow
@pytest.mark.parametrize("hold", [by_agent_tool, by_component_tool, by_method, by_pipeline, by_another_agent])
def test_a_tool_that_would_run_an_agent_past_an_approval_of_its_registration_is_refused(
    hold: Callable[[Agent], Tool],
) -> None:
    with pytest.raises(AgentBuildFailed) as refused:
        make_durable(asking([hold(cashier(APPROVED))]))
    assert str(refused.value) == (
        "The agent 'agent' cannot be made durable. The tool 'helper' runs an agent with the tool 'pay', which needs "
        "approval. An agent in a tool runs within one call, so nobody would be asked. Give 'pay' to the outer agent "
        "itself instead, or give 'helper' a policy with approval=True, which holds for the whole call."
    )


@pytest.mark.parametrize("tools", [[], [pay], [fast]])
def test_an_approval_that_the_outer_agent_asks_for_by_the_tools_name_is_not_skipped_inside(
    tools: list[Tool],
) -> None:
    with pytest.raises(AgentBuildFailed, match="runs an agent with the tool 'pay', which needs approval"):
        make_durable(asking([by_agent_tool(cashier()), *tools]), policies=APPROVED)


def test_an_agent_whose_tool_lists_agents_only_at_run_time_fails_before_anything_is_paid() -> None:
    toolset = SearchableToolset([by_agent_tool(cashier(APPROVED))])
    outcome = run(make_durable(asking(toolset)), MemoryJournal.open(say="hi"))
    assert "PolicyNotKept: The tool 'helper' runs an agent with the tool 'pay'" in outcome.why
    assert effects == []


def test_an_approval_of_the_whole_call_covers_the_agent_inside(tmp_path: Path) -> None:
    tools = Toolset([by_agent_tool(cashier(APPROVED))])
    session = DurableAgent(asking(tools), tmp_path / "session.jsonl", policies=COVERED)
    assert session.run("hi").finished is False
    assert [(call.tool, call.waits_for) for call in session.pending()] == [("helper", "approval")]
    assert effects == ["outer(0)"]
    session.decide("h1", approve=True)
    assert session.resume().text == "Done."
    assert effects == ["outer(0)", "inner(0)", "pay(inner)", "inner(1)", "outer(1)"]


@pytest.mark.parametrize("inner", [ToolPolicy(effect="moves money"), ToolPolicy(identity=("q",))])
def test_an_effect_inside_has_to_be_named_by_the_tool_that_runs_the_agent(inner: ToolPolicy) -> None:
    nested = cashier({"pay": inner})
    with pytest.raises(AgentBuildFailed, match="'helper' a policy with an effect or approval=True"):
        make_durable(asking([by_agent_tool(nested)]))
    policy = ToolPolicy(idempotent=True, effect="moves money")
    with pytest.raises(AgentBuildFailed, match="Leave idempotent out of the policy of 'helper'"):
        make_durable(asking([by_agent_tool(nested)]), policies={"helper": policy})
    make_durable(asking([by_agent_tool(nested)]), policies={"helper": ToolPolicy(effect="moves money")})


def test_policies_that_ask_nobody_need_nothing_of_the_tool_that_runs_the_agent() -> None:
    quiet = ToolPolicy(idempotent=True, cache_ttl=60, timeout=5)
    assert make_durable(asking([by_agent_tool(cashier({"pay": quiet}))])).policies == {}


def test_a_call_in_doubt_names_the_tools_of_the_agent_inside() -> None:
    @tool
    def dies() -> str:
        """Kills the process."""
        raise Died

    nested = Agent(chat_generator=scripted([ToolCall("dies", {}, id="d1")], "."), tools=[pay, dies])
    journal = MemoryJournal.open(say="hi")
    with pytest.raises(Died):
        run(make_durable(asking([by_agent_tool(nested)])), journal)
    outcome = run(make_durable(asking([by_agent_tool(nested)])), MemoryJournal.open(journal.store))
    assert outcome.why == (
        "helper was started and did not report back. It may or may not have taken effect. An agent runs inside "
        "helper: each of its tools may have taken effect, possibly several times: dies, pay."
    )


@pytest.mark.django_db
def test_the_page_of_an_agent_says_which_tool_runs_an_agent(client: Client, desk: Desk) -> None:
    desk.agent(lambda: asking([by_agent_tool(cashier()), fast]))
    published = RegisteredAgent.objects.get(key="made-for-a-test")
    assert [described.get("tools_inside") for described in published.tools] == [["pay"], None]
    client.force_login(builders.user("operator", "anna"))
    text = text_of(client, f"/agents/{published.key}/")
    assert text.count("Runs an agent with the tools pay inside one call.") == 1


@pytest.mark.django_db
def test_an_agent_that_would_run_past_an_approval_is_published_with_that_problem(desk: Desk) -> None:
    desk.agent(lambda: asking([by_agent_tool(cashier(APPROVED))]))
    problem = RegisteredAgent.objects.get(key="made-for-a-test").problem
    assert "runs an agent with the tool 'pay', which needs approval" in problem


@pytest.mark.slow
@pytest.mark.django_db
def test_the_card_of_a_call_in_doubt_names_the_tools_of_the_agent_inside(client: Client) -> None:
    session = builders.in_doubt()
    published = RegisteredAgent.objects.get(key=session.agent)
    for described in published.tools:
        if described["name"] == "issue_refund":
            described["tools_inside"] = ["pay", "send_letter"]
    published.save()
    client.force_login(builders.user("operator", "anna"))
    for address in (f"/sessions/{session.pk}/", "/inbox/"):
        text = text_of(client, address)
        assert (
            "An agent runs inside issue_refund : each of its tools may have taken effect, possibly several times: "
            "pay , send_letter . Running the call again runs all of them again."
        ) in text


def text_of(client: Client, address: str) -> str:
    page = text_at(client, address)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", page)).split())
