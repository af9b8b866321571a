"""A result that is the text of a JSON document is shown as the document, and what is hidden in it stays hidden."""

import html
import json
from typing import Any

import pytest
from django.conf import LazySettings
from django.test import Client

from sessions_app.access.masking import Mask
from sessions_app.desk.pages.values import json_document, readable
from tests import builders

PAID = {"paid": 25.5, "to": {"iban": "DE89370400440532013000", "name": 'Ada "Countess"'}}


@pytest.mark.parametrize(
    "value, text, line",
    [
        (
            '{"paid": 25.5, "note": "a\\nb"}',
            '{\n  "paid": 25.5,\n  "note": "a\\nb"\n}',
            "paid 25.5, note a b",
        ),
        ("[1, 2]", "[\n  1,\n  2\n]", "[ 1, 2 ]"),
        ({"result": '{"paid": 5}'}, '{\n  "result": {\n    "paid": 5\n  }\n}', "paid 5"),
    ],
)
def test_a_text_that_is_a_json_document_is_read_as_one(value: Any, text: str, line: str) -> None:
    shown = readable(value)
    assert (shown.text, shown.line, shown.has_json_text, shown.plain) == (text, line, True, False)
    assert not readable(value, as_stored=True).has_json_text


@pytest.mark.parametrize(
    "text", ["25", '"a"', "paid 25", "{paid}", '{"a": 1, "a": 2}', '{"a": NaN}', "[" * 500 + "]" * 500, ""]
)
def test_any_other_text_stays_as_it_is(text: str) -> None:
    shown = readable(text)
    assert (shown.text, shown.plain, shown.has_json_text) == (text, True, False)


def test_a_hidden_number_does_not_keep_a_document_from_being_shown() -> None:
    text = Mask.of(["amount"], ["4711"]).text('{"amount": 12, "code": 4711, "says": "4711: {•"}')
    assert json_document(text) == {"amount": "••••", "code": "••••", "says": "••••: {•"}


@pytest.mark.django_db
def test_the_timeline_and_the_page_of_a_call_show_the_document_without_what_is_hidden(
    client: Client, settings: LazySettings
) -> None:
    settings.AGENTSTATE_MASK_KEYS = ["iban"]
    history = builders.refunding()
    call = history.finish(history.calls[-1], json.dumps({"result": json.dumps(PAID)}))
    history.checkpoint("step")
    session = history.rest("paused")
    client.force_login(builders.user("operator"))
    for address in (f"/sessions/{session.pk}/", f"/sessions/{session.pk}/calls/{call.pk}/"):
        page = html.unescape(client.get(address).content.decode())
        assert '"iban": "••••",\n      "name": "Ada \\"Countess\\""' in page
        assert "DE8937" not in page
    assert "JSON text, formatted." in page
