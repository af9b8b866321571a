"""Evidence on a card has room, is written in the formats of the call, and is never cut without a way to the rest."""

import html
import re

import pytest
from django.test import Client

from sessions_app.desk.pages.excerpts import Excerpt, of_text, of_value
from sessions_app.models import Message, RegisteredAgent, ToolCall
from tests import builders

FORMATS = {"amount": "money:EUR", "day": "date"}


def test_a_short_text_is_all_on_one_line_and_a_long_one_opens_into_the_whole():
    assert of_text("Pay\nme back", 20) == Excerpt("Pay me back")
    assert of_text("Pay me back\n450 euros", 16) == Excerpt("Pay me back 450…", "Pay me back\n450 euros")
    assert not of_text("", 20)


def test_an_object_is_written_by_its_keys_with_the_formats_of_the_arguments_of_the_same_names():
    value = {"claim_number": "CLM-7", "amount": 1450, "day": "2026-11-02", "paid": False, "note": None}
    assert (
        of_value(value, 99, FORMATS).line
        == "claim number: CLM-7, amount: €1,450.00, day: 2 Nov 2026, paid: no"
    )
    assert of_value(value, 99).line == "claim number: CLM-7, amount: 1450, day: 2026-11-02, paid: no"


def test_an_object_that_is_too_long_opens_into_all_its_keys_and_values():
    value = {"text": "x" * 70, "amount": 450, "parts": [{"part": "glass"}], "years": [2025, 2026]}
    excerpt = of_value(value, 50, FORMATS)
    assert excerpt.line == "amount: €450.00, years: 2025, 2026, text: xxxxxxx…"
    assert excerpt.facts == [
        ("text", "x" * 70),
        ("amount", "€450.00"),
        ("parts", '[\n  {\n    "part": "glass"\n  }\n]'),
        ("years", "2025, 2026"),
    ]


def test_a_list_inside_an_object_can_be_opened_also_where_the_rest_fits_on_the_line():
    excerpt = of_value({"claim": {"amount": 450, "parts": [{"part": "glass"}]}}, 99, FORMATS)
    assert excerpt.line == "amount: €450.00"
    assert [key for key, _ in excerpt.facts] == ["amount", "parts"]


def test_a_text_of_json_is_read_as_the_object_that_it_is():
    assert of_value('{"amount": 450, "status": "open"}', 99, FORMATS).line == "amount: €450.00, status: open"
    assert of_value([1, 2], 99).line == "[ 1, 2 ]"
    assert of_value(7, 99).line == "7"


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
