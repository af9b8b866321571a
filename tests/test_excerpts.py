"""Evidence on a card has room, is written in the formats of the call, and is never cut without a way to the rest."""

import html
import re
from typing import Any

import pytest
from django.test import Client

from sessions_app.desk.pages.excerpts import Excerpt, Style, of_text, of_value
from sessions_app.models import Message, RegisteredAgent, ToolCall
from tests import builders

EUROS = Style({"amount": "money:EUR", "day": "date"}, {"day": "Day of payment"})


def test_a_short_text_is_all_on_one_line_and_a_long_one_opens_into_the_whole():
    assert of_text("Pay\nme back", 20) == Excerpt("Pay me back")
    assert of_text("Pay me back\n450 euros", 16) == Excerpt("Pay me back 450…", "Pay me back\n450 euros")
    assert not of_text("", 20)


def test_an_object_is_written_by_its_keys_with_the_formats_of_the_arguments_of_the_same_names():
    value = {"claim_number": "CLM-7", "amount": 1450, "day": "2026-11-02", "paid": False, "note": None}
    assert (
        of_value(value, 99, EUROS).line
        == "claim number: CLM-7, amount: €1,450.00, Day of payment: 2 Nov 2026, paid: no"
    )
    assert of_value(value, 99).line == "claim number: CLM-7, amount: 1450, day: 2026-11-02, paid: no"


def test_an_object_that_is_too_long_opens_into_all_its_keys_and_values():
    value = {"text": "x" * 70, "amount": 450, "parts": [{"part": "glass"}], "years": [2025, 2026]}
    excerpt = of_value(value, 50, EUROS)
    assert excerpt.line == "amount: €450.00, years: 2025, 2026, text: xxxxxxx…"
    assert excerpt.facts == (
        ("text", "x" * 70),
        ("amount", "€450.00"),
        ("parts", '[\n  {\n    "part": "glass"\n  }\n]'),
        ("years", "2025, 2026"),
    )


def test_a_list_inside_an_object_can_be_opened_also_where_the_rest_fits_on_the_line():
    excerpt = of_value({"claim": {"amount": 450, "parts": [{"part": "glass"}]}}, 99, EUROS)
    assert excerpt.line == "amount: €450.00"
    assert [key for key, _ in excerpt.facts] == ["amount", "parts"]


def test_a_text_of_json_is_read_as_the_object_that_it_is():
    assert of_value('{"amount": 450, "status": "open"}', 99, EUROS).line == "amount: €450.00, status: open"
    assert of_value([1, 2], 99).line == "[ 1, 2 ]"
    assert of_value(7.0, 99).line == "7"


def test_numbers_are_written_as_people_write_them():
    value = {"damage": 640.0, "share": 0.25, "amount": "640.5", "count": 3, "big": 1e300}
    assert (
        of_value(value, 99, EUROS).line == "damage: 640, share: 0.25, amount: €640.50, count: 3, big: 1e+300"
    )


def test_of_many_keys_the_line_has_those_with_a_format_or_a_value_of_the_call():
    value = {f"key {number}": f"v{number}" for number in range(9)} | {
        "amount": 450.0,
        "withheld": 100.0,
        "because": "the other driver was at fault",
    }
    about = {"100.0", "Waived: the other driver was at fault"}
    excerpt = of_value(value, 320, EUROS, about)
    assert (
        excerpt.line
        == "key 0: v0, key 1: v1, key 2: v2, amount: €450.00, withheld: 100, because: the other driver was at fault"
    )
    assert len(excerpt.facts) == 12


def test_a_list_of_objects_is_read_one_after_the_other():
    found = [{"claim": "CLM-1", "amount": 5}, {"claim": "CLM-2", "amount": 7}]
    excerpt = of_value(found, 99, EUROS)
    assert excerpt == Excerpt("claim: CLM-1, amount: €5.00; claim: CLM-2, amount: €7.00")
    assert of_value(found, 30, EUROS).whole == "claim: CLM-1, amount: €5.00\nclaim: CLM-2, amount: €7.00"


def test_documents_are_named_by_their_titles_and_open_into_what_they_say():
    document = {"$type": "document", "value": {"content": "Glass is covered.", "meta": {"title": "A1"}}}
    assert of_value([document], 99) == Excerpt("“A1”", "A1\nGlass is covered.")


@pytest.mark.django_db
def test_a_card_shows_the_deciding_amount_as_money_and_opens_the_rest_without_a_script(client: Client):
    [agent] = RegisteredAgent.objects.all() or [builders.agent()]
    refund = next(tool for tool in agent.tools if tool["name"] == "issue_refund")
    refund["policy"] = {**refund["policy"], "formats": {"amount": "money:EUR"}}
    agent.save()
    history = builders.looked_up()
    ToolCall.objects.update(result={"terms": "t" * 400, "policy": "POL-7", "amount": 450})
    Message.objects.filter(role="user").update(text=f"It is about POL-7. {'w' * 600} I am owed 450 euros.")
    history.reply("I refund it.", [("issue_refund", {"claim": "CLM-1", "policy": "POL-7", "amount": 120})])
    history.ask(history.calls[-1])
    history.rest("waiting", waiting_for="approval")
    client.force_login(builders.user("operator"))
    page = client.get("/inbox/").content.decode()
    words, found = re.findall(r'<details class="excerpt">.*?</details>', page, re.DOTALL)
    assert "I am owed 450 euros." in words
    assert re.search(r"<dt>amount</dt>\s*<dd>€450.00</dd>", html.unescape(found))


@pytest.mark.django_db
def test_a_finding_has_the_titles_and_formats_of_its_own_tool(client: Client, settings):
    settings.AGENTSTATE_MASK_KEYS = ["iban"]
    agent = builders.agent()
    limit = {"type": "number", "title": "Insured up to"}
    own: dict[str, Any] = {
        "properties": {"limit": limit},
        "formats": {"limit": "money:USD", "amount": "money:USD"},
    }
    refund: dict[str, Any] = {
        "properties": {"amount": {"type": "number"}},
        "formats": {"amount": "money:EUR"},
    }
    agent.tools = [
        builders.tool("lookup_policy", **own),
        builders.tool("issue_refund", approval=True, **refund),
    ]
    agent.save()
    history = builders.looked_up()
    ToolCall.objects.update(result={"limit": 500.0, "amount": 640.0, "damage": 640.0, "iban": "DE89"})
    history.reply("I refund it.", [("issue_refund", {"policy": "POL-7", "amount": 120})])
    history.ask(history.calls[-1])
    history.rest("waiting", waiting_for="approval")
    client.force_login(builders.user("operator"))
    page = client.get("/inbox/").content.decode()
    for fact in ("Insured up to: $500.00", "amount: $640.00", "damage: 640", "iban: ••••"):
        assert fact in page
    assert "640.0," not in page
