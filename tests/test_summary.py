"""What a call does, in one line: as its tool's policy says it, with each argument formatted and hidden by its key."""

import re
from typing import Any

import pytest
from django.test import Client
from haystack.components.agents import Agent

from agentstate.durable.agent import make_durable
from agentstate.durable.policy import ToolPolicy
from agentstate.durable.registry import AgentBuildFailed
from sessions_app.desk.pages.summary import summary
from sessions_app.models import Approval, RegisteredAgent, Session
from tests import builders, sample_agents

REFUND: dict[str, Any] = {"summary": "Refund {amount} on claim {claim}", "formats": {"amount": "money:EUR"}}


def published(**policy: Any) -> RegisteredAgent:
    return RegisteredAgent(key="claims", tools=[builders.tool("issue_refund", **policy)])


def refund(**policy: Any) -> Session:
    """A session that waits for the approval of a refund of 120 by a tool with this policy."""
    session = builders.waiting_for_approval()
    agent = RegisteredAgent.objects.get(key="claims")
    for tool in agent.tools:
        if tool["name"] == "issue_refund":
            tool["policy"] |= policy
    agent.model = "a model"  # the strip of the demo's model names claims
    agent.save()
    return session


@pytest.mark.parametrize(
    "policy, arguments, shown",
    [
        (REFUND, {"amount": 450, "claim": "CLM-1042"}, "Refund €450.00 on claim CLM-1042"),
        (REFUND, {"amount": 1234567.5, "claim": "CLM-1042"}, "Refund €1,234,567.50 on claim CLM-1042"),
        (REFUND, {"amount": 100.004, "claim": "CLM-1042"}, "Refund €100.004 on claim CLM-1042"),
        (REFUND, {"amount": 10**21, "claim": "C"}, "Refund €1,000,000,000,000,000,000,000.00 on claim C"),
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
    session = refund(**REFUND)
    client.force_login(builders.user("operator"))
    page = client.get(address.format(session.pk)).content.decode()
    assert "Refund €120.00 on claim ••••" in page
    assert "CLM-1042" not in page


def button_of(page: str) -> str:
    """The text of the primary button that approves."""
    [button] = re.findall(r'<button\s[^>]*class="button\s+first"[^>]*>(.*?)</button>', page, re.DOTALL)
    return " ".join(re.sub(r"<span data-edited hidden>.*?</span>|<[^>]+>", " ", button).split())


@pytest.mark.django_db
def test_the_card_lists_the_arguments_by_their_titles_and_formats_and_its_button_says_what_is_paid(
    client: Client,
) -> None:
    refund(**REFUND)
    client.force_login(builders.user("operator"))
    page = client.get("/inbox/").content.decode()
    listed = re.findall(r"<dt>(.*?)</dt>\s*<dd>\s*<code>(.*?)</code>", page)
    assert listed[:2] == [("Claim", "CLM-1042"), ("Amount", "€120.00")]
    assert button_of(page) == "Approve €120.00"


@pytest.mark.django_db
def test_a_dialog_that_pays_says_what_was_typed_to_be_paid_and_looks_like_one(client: Client) -> None:
    session = refund(**REFUND)
    approval = Approval.objects.get()
    client.force_login(builders.user("operator"))
    address = f"/sessions/{session.pk}/approve/"
    page = client.get(address, {"call": approval.call_id}).content.decode()
    assert button_of(page) == "Approve €120.00"
    assert 'class="dialog payment"' in page
    sent = {"version": session.version, "call_id": approval.call_id, "fingerprint": "x", "arg-amount": "99.5"}
    page = client.post(address, sent).content.decode()
    assert button_of(page) == "Approve €99.50"
    page = client.post(address, sent | {"arg-amount": "all"}).content.decode()
    assert button_of(page) == "Approve"
    page = client.get(f"/sessions/{session.pk}/reject/", {"call": approval.call_id}).content.decode()
    assert "payment" not in page


@pytest.mark.django_db
@pytest.mark.parametrize(
    "policy, button",
    [
        ({}, "Approve"),
        ({"formats": {"amount": "money:EUR", "claim": "money:EUR"}}, "Approve"),
        ({"formats": {"amount": "money:JPY"}}, "Approve ¥120"),
    ],
)
def test_a_button_names_a_sum_only_where_the_policy_formats_one_argument_as_money(
    client: Client, policy: dict[str, Any], button: str
) -> None:
    refund(**policy)
    client.force_login(builders.user("operator"))
    assert button_of(client.get("/inbox/").content.decode()) == button


@pytest.mark.django_db
def test_a_hidden_sum_is_hidden_in_the_button_too(client: Client, settings: Any) -> None:
    settings.AGENTSTATE_MASK_KEYS = ["amount"]
    refund(**REFUND)
    client.force_login(builders.user("operator"))
    page = client.get("/inbox/").content.decode()
    assert button_of(page) == "Approve ••••"
    assert "120" not in re.sub(r'(?s)<head>.*?</head>|="[^"]*"', "", page)
