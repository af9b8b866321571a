"""What a call does, in one line: as its tool's policy says it, with each argument formatted and hidden by its key."""

import re
from typing import Any

import pytest
from django.test import Client
from haystack.components.agents import Agent

from agentstate.durable.agent import make_durable
from agentstate.durable.policy import ToolPolicy
from agentstate.durable.registry import AgentBuildFailed
from sessions_app.access.masking import Mask
from sessions_app.desk.pages import approvals
from sessions_app.desk.pages.arguments import defaults_of
from sessions_app.desk.pages.summary import summary
from sessions_app.models import Approval, RegisteredAgent, Session
from tests import builders, sample_agents
from tests.pages import without_random

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
    assert summary(published(**policy), "issue_refund", arguments, Mask.none()) == shown


def test_a_tool_that_no_worker_has_published_is_shown_by_its_name() -> None:
    assert summary(None, "issue_refund", {"amount": 450}, Mask.none()) == "Issue refund"


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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.django_db
def test_a_hidden_sum_is_hidden_in_the_button_too(client: Client, settings: Any) -> None:
    settings.AGENTSTATE_MASK_KEYS = ["amount"]
    refund(**REFUND)
    client.force_login(builders.user("operator"))
    page = client.get("/inbox/").content.decode()
    assert button_of(page) == "Approve ••••"
    assert "120" not in without_random(page)


DEFAULTS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "claim": {"type": "string"},
        "amount": {"type": "number", "default": 25.0, "title": "Sum"},
        "speed": {"enum": ["slow", "fast"], "default": "slow"},
        "note": {"type": "string", "default": "Goodwill"},
        "iban": {"type": "string", "default": None},
    },
    "required": ["claim"],
}


def left_to_defaults() -> Session:
    """A session that waits for the approval of a refund whose amount, speed and note the agent left out."""
    session = refund(**REFUND | {"summary": "Refund {amount} on {claim}: {note}"})
    agent = RegisteredAgent.objects.get(key="claims")
    for tool in agent.tools:
        if tool["name"] == "issue_refund":
            tool["parameters"] = DEFAULTS
    agent.save()
    approval = Approval.objects.get()
    approval.arguments = approval.call.arguments = {"claim": "CLM-1042"}
    approval.call.save()
    approval.save()
    return session


@pytest.mark.slow
@pytest.mark.django_db
@pytest.mark.parametrize("address", ["/inbox/", "/sessions/{}/"])
def test_an_argument_that_the_agent_left_out_is_shown_as_the_default_of_the_schema(
    client: Client, address: str
) -> None:
    session = left_to_defaults()
    client.force_login(builders.user("operator"))
    page = client.get(address.format(session.pk)).content.decode()
    assert "Refund €25.00 on CLM-1042: Goodwill" in page
    assert button_of(page) == "Approve €25.00"
    listed = re.findall(r"<dt>(.*?)</dt>\s*<dd>\s*<code>(.*?)</code>\s*(?:<span.*?>(.*?)</span>)?", page)
    # PostgreSQL does not keep the order of the names in the stored schema.
    assert {row for row in listed if row[0] in ("Claim", "Sum", "Speed", "Note")} == {
        ("Claim", "CLM-1042", ""),
        ("Sum", "€25.00", "default"),
        ("Speed", "slow", "default"),
        ("Note", "Goodwill", "default"),
    }
    assert re.search(r'name="arg-amount" value="25.0"\s+inputmode="decimal"\s+data-asked="25.0"', page)
    assert '<small class="soft">default €25.00</small>' in page
    assert '<option value="slow" selected>slow</option>' in page


@pytest.mark.slow
@pytest.mark.django_db
@pytest.mark.parametrize(
    "typed, edited",
    [
        ({}, None),
        ({"arg-amount": "30"}, {"claim": "CLM-1042", "amount": 30}),
        ({"arg-note": ""}, {"claim": "CLM-1042", "note": ""}),
        ({"arg-amount": ""}, None),
    ],
    ids=["as-shown", "another", "no-text", "cleared"],
)
def test_a_default_that_is_left_as_it_is_shown_changes_nothing(
    client: Client, typed: dict[str, str], edited: dict[str, Any] | None
) -> None:
    session = left_to_defaults()
    client.force_login(builders.user("operator"))
    approval = Approval.objects.get()
    [card] = approvals.read_cards(builders.page_context(), [approval.pk]).values()
    shown = {field.input_name: field.value for field in card.fields}
    assert not card.edited
    sent = {
        "version": session.version,
        "call_id": approval.call_id,
        "fingerprint": approvals.shown_fingerprint(approval),
    }
    assert client.post(f"/sessions/{session.pk}/approve/", sent | shown | typed).status_code == 302
    approval.refresh_from_db()
    assert (approval.decision, approval.edited) == ("approved", edited)


@pytest.mark.slow
@pytest.mark.django_db
def test_a_default_is_hidden_by_the_name_of_its_argument(client: Client, settings: Any) -> None:
    settings.AGENTSTATE_MASK_KEYS = ["note", "amount"]
    session = left_to_defaults()
    client.force_login(builders.user("operator"))
    approval = Approval.objects.get()
    for address in (
        "/inbox/",
        f"/sessions/{session.pk}/",
        f"/sessions/{session.pk}/approve/?call={approval.call_id}",
    ):
        page = client.get(address).content.decode()
        assert "Refund •••• on CLM-1042: ••••" in re.sub(r"<[^>]+>", "", page)
        assert "Goodwill" not in page
        assert "25.0" not in without_random(page)
    sent = {
        "version": session.version,
        "call_id": approval.call_id,
        "fingerprint": approvals.shown_fingerprint(approval),
        "arg-amount": '"••••"',
        "arg-note": '"••••"',
    }
    assert client.post(f"/sessions/{session.pk}/approve/", sent).status_code == 302
    approval.refresh_from_db()
    assert (approval.decision, approval.edited) == ("approved", None)


def test_a_default_that_no_call_can_leave_out_is_none() -> None:
    assert defaults_of({"properties": {"a": {"default": 1}, "b": {"default": 2}}, "required": ["a"]}) == {
        "b": 2
    }


@pytest.mark.django_db
def test_the_dialog_that_rejects_says_what_is_rejected(client: Client) -> None:
    session = refund(**REFUND)
    client.force_login(builders.user("operator"))
    call = Approval.objects.get().call_id
    page = client.get(f"/sessions/{session.pk}/reject/", {"call": call}).content.decode()
    assert '<b class="what summary">Refund €120.00 on claim CLM-1042</b>' in page
