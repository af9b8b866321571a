"""What a call does, in one line: as its tool's policy says it, with each argument formatted and hidden by its key."""

from typing import Any

import pytest
from django.test import Client
from haystack.components.agents import Agent

from agentstate.durable.agent import make_durable
from agentstate.durable.policy import ToolPolicy
from agentstate.durable.registry import AgentBuildFailed
from sessions_app.desk.pages.summary import summary
from sessions_app.models import RegisteredAgent
from tests import builders, sample_agents

REFUND: dict[str, Any] = {"summary": "Refund {amount} on claim {claim}", "formats": {"amount": "money:EUR"}}


def published(**policy: Any) -> RegisteredAgent:
    return RegisteredAgent(key="claims", tools=[builders.tool("issue_refund", **policy)])


@pytest.mark.parametrize(
    "policy, arguments, shown",
    [
        (REFUND, {"amount": 450, "claim": "CLM-1042"}, "Refund €450.00 on claim CLM-1042"),
        (REFUND, {"amount": 1234567.5, "claim": "CLM-1042"}, "Refund €1,234,567.50 on claim CLM-1042"),
        (REFUND, {"amount": "••••", "claim": "CLM-1042"}, "Refund •••• on claim CLM-1042"),
        (REFUND, {"amount": 450}, "Refund €450.00 on claim –"),
        (REFUND, {"amount": True, "claim": None}, "Refund True on claim –"),
        ({"summary": "Pay {n}", "formats": {"n": "money:CHF"}}, {"n": 5}, "Pay 5.00 CHF"),
        ({"summary": "Pay {n}", "formats": {"n": "money:JPY"}}, {"n": 5000}, "Pay ¥5,000"),
        ({"summary": "Due {d}", "formats": {"d": "date"}}, {"d": "2026-11-02"}, "Due 2 Nov 2026"),
        (
            {"summary": "Due {d}", "formats": {"d": "date"}},
            {"d": "2026-11-02T10:00:00+01:00"},
            "Due 2 Nov 2026",
        ),
        ({"summary": "Due {d}", "formats": {"d": "date"}}, {"d": "tomorrow"}, "Due tomorrow"),
        ({"summary": "Set {{x}} to {v}"}, {"v": {"a": 1}}, "Set {x} to {'a': 1}"),
        ({"summary": "Say {t}"}, {"t": "{t} {0} %s"}, "Say {t} {0} %s"),
        ({"summary": "Say {t}"}, {"t": "x" * 200}, "Say " + "x" * 79 + "…"),
        ({}, {"amount": 450}, "Issue refund"),
    ],
)
def test_the_line_says_what_the_call_does(
    policy: dict[str, Any], arguments: dict[str, Any], shown: str
) -> None:
    assert summary(published(**policy), "issue_refund", arguments) == shown


def test_a_tool_that_no_worker_has_published_is_shown_by_its_name() -> None:
    assert summary(None, "issue_refund", {"amount": 450}) == "Issue refund"


@pytest.mark.parametrize(
    "policy, message",
    [
        ({"summary": "Refund {amount:.2f}"}, "may have only names of arguments in its braces"),
        ({"summary": "Refund {amount.real}"}, "may have only names of arguments in its braces"),
        ({"summary": "Refund {0}"}, "may have only names of arguments in its braces"),
        ({"summary": "Refund {amount!r}"}, "may have only names of arguments in its braces"),
        ({"summary": "Refund {amount"}, "cannot be read"),
        ({"formats": {"amount": "EUR"}}, "the format of 'amount' must be 'money:EUR'"),
    ],
)
def test_a_summary_that_cannot_be_shown_is_refused_when_it_is_declared(
    policy: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        ToolPolicy(**policy)


def test_a_summary_that_names_an_argument_which_the_tool_lacks_is_refused() -> None:
    agent = Agent(chat_generator=sample_agents.scripted("Hello"), tools=[sample_agents.refund])
    message = "whose summary or formats names arguments that the tool lacks: claim"
    with pytest.raises(AgentBuildFailed, match=message):
        make_durable(agent, policies={"refund": ToolPolicy(summary="Refund {amount} on {claim}")})


@pytest.mark.django_db
@pytest.mark.parametrize("address", ["/inbox/", "/sessions/{}/"])
def test_the_card_and_the_banner_show_the_line_with_hidden_arguments_hidden(
    client: Client, settings: Any, address: str
) -> None:
    settings.AGENTSTATE_MASK_KEYS = ["claim"]
    session = builders.waiting_for_approval()
    agent = RegisteredAgent.objects.get(key="claims")
    for tool in agent.tools:
        if tool["name"] == "issue_refund":
            tool["policy"] |= REFUND
    agent.save()
    client.force_login(builders.user("operator"))
    page = client.get(address.format(session.pk)).content.decode()
    assert "Refund €120.00 on claim ••••" in page
    assert "CLM-1042" not in page
