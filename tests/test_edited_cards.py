"""A card says everywhere what will be sent: its sentence, beside what was requested, its button, and each field."""

import html
import re
from collections.abc import Iterator
from typing import Any

import pytest
from django.test import Client
from playwright.sync_api import Browser, Page, expect

from sessions_app.access.masking import HIDDEN
from sessions_app.desk.pages.arguments import unfit
from sessions_app.models import Approval
from tests import builders
from tests.browsing import log_in
from tests.test_summary import REFUND, refund


def text_of(part: str) -> str:
    return " ".join(html.unescape(re.sub(r"<(\w+)[^>]* hidden[^>]*>.*?</\1>|<[^>]*>", " ", part)).split())


def sentence_of(page: str) -> str:
    [sentence] = re.findall(r'<b class="what summary">(.*?)</b>', page, re.DOTALL)
    return html.unescape(re.sub(r"<[^>]*>", "", sentence))


@pytest.mark.slow
@pytest.mark.django_db
def test_a_dialog_that_was_refused_names_in_its_sentence_what_was_typed(client: Client) -> None:
    session = refund(**REFUND)
    approval = Approval.objects.get()
    client.force_login(builders.user("operator"))
    address = f"/sessions/{session.pk}/approve/"
    page = client.get(address, {"call": approval.call_id}).content.decode()
    assert sentence_of(page) == "Refund €120.00 on claim CLM-1042"
    assert "requested" not in text_of(page)
    sent = {"version": session.version, "call_id": approval.call_id, "fingerprint": "x", "arg-amount": "99.5"}
    page = client.post(address, sent).content.decode()
    assert sentence_of(page) == "Refund €99.50 on claim CLM-1042"
    assert text_of(page).count("requested €") == 1
    assert "€120.00 will run with €99.50" in text_of(page)
    assert "CLM-1042 will run with" not in text_of(page)


@pytest.mark.django_db
def test_what_a_person_sent_before_is_beside_what_was_requested(client: Client) -> None:
    refund(**REFUND)
    Approval.objects.update(edited={"claim": "CLM-1042", "amount": 80})
    client.force_login(builders.user("operator"))
    page = client.get("/inbox/").content.decode()
    assert sentence_of(page) == "Refund €80.00 on claim CLM-1042"
    assert re.search(r'class="replaced-by">\s*<dt>Amount</dt>\s*<dd>\s*<code>€120.00</code>', page)
    assert "will run with €80.00" in text_of(page)
    assert 'aria-label="Approve: Refund €80.00 on claim CLM-1042"' in page


@pytest.mark.slow
@pytest.mark.django_db
def test_a_tool_is_pre_approved_in_the_same_words_everywhere(client: Client) -> None:
    session = refund(**REFUND)
    client.force_login(builders.user("operator"))
    call = Approval.objects.get().call_id
    for address in ("/inbox/", f"/sessions/{session.pk}/", f"/sessions/{session.pk}/approve/?call={call}"):
        page = client.get(address).content.decode()
        assert "Pre-approve issue_refund for the rest of this session" in text_of(page)


@pytest.fixture
def page(browser: Browser, live_server: Any) -> Iterator[Page]:
    context = browser.new_context(base_url=live_server.url, viewport={"width": 1280, "height": 900})
    yield log_in(context)
    context.close()


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.django_db(transaction=True)
def test_an_edit_that_is_closed_is_told_everywhere_and_one_that_is_discarded_nowhere(page: Page) -> None:
    refund(**REFUND)
    page.goto("/inbox/")
    card = page.locator("[data-card]")
    edit, amount = card.locator("details.edit"), card.get_by_label("Amount", exact=True)
    sentence, approve = card.locator(".what"), card.locator("button.first")
    edit.locator("summary").first.click()
    expect(edit.get_by_text("requested")).to_have_count(2)
    expect(edit.get_by_text("requested").locator("visible=true")).to_have_count(0)
    amount.fill("1450.5")
    expect(edit.get_by_text("requested €120.00")).to_be_visible()
    edit.locator("summary").first.click()
    expect(amount).to_be_hidden()
    expect(sentence).to_have_text("Refund €1,450.50 on claim CLM-1042")
    expect(card.locator("dl.asked").first).to_contain_text("€120.00 will run with €1,450.50")
    expect(approve).to_have_text(re.compile(r"Approve\s+€1,450.50\s+edited"))
    expect(card).to_have_attribute("aria-label", "Approve: Refund €1,450.50 on claim CLM-1042")
    edit.locator("summary").first.click()
    page.get_by_role("button", name="Discard edit").click()
    expect(amount).to_be_hidden()
    expect(sentence).to_have_text("Refund €120.00 on claim CLM-1042")
    expect(card.locator("dl.asked ins").locator("visible=true")).to_have_count(0)
    expect(approve).to_have_text(re.compile(r"Approve\s+€120.00"))
    expect(card.locator("[data-edited]")).to_be_hidden()
    expect(page.locator("#announce")).to_contain_text("Edit discarded.")
    approve.click()
    expect(page.locator(".toast")).to_contain_text("Approved.")
    assert Approval.objects.get().edited is None


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.django_db(transaction=True)
def test_without_a_script_an_edit_is_discarded_by_the_form_itself(browser: Browser, live_server: Any) -> None:
    refund(**REFUND)
    context = browser.new_context(base_url=live_server.url, java_script_enabled=False)
    page = log_in(context)
    page.goto("/inbox/")
    page.locator("details.edit > summary").click()
    page.get_by_label("Amount", exact=True).fill("80")
    page.get_by_role("button", name="Discard edit").click()
    expect(page.get_by_label("Amount", exact=True)).to_have_value("120")
    context.close()


@pytest.mark.django_db
def test_a_request_that_its_tool_does_not_take_is_marked_where_it_can_be_approved(operator: Client) -> None:
    history = builders.looked_up()
    history.reply(calls=[("issue_refund", {"amount": "many"})])
    approval = history.ask(history.calls[-1])
    session = history.rest("waiting", waiting_for="approval")
    told = "Amount is not a number. The call may fail"
    for page in (
        "/inbox/",
        f"/sessions/{session.pk}/",
        f"/sessions/{session.pk}/approve/?call={approval.call_id}",
    ):
        assert operator.get(page).content.decode().count(told) == 1


@pytest.mark.django_db
def test_a_request_that_its_tool_takes_is_not_marked_nor_one_whose_value_is_hidden(
    operator: Client, settings: Any
) -> None:
    session = builders.waiting_for_approval()
    assert "The call may fail" not in operator.get(f"/sessions/{session.pk}/").content.decode()
    settings.AGENTSTATE_MASK_KEYS = ["amount"]
    page = operator.get(f"/sessions/{session.pk}/").content.decode()
    assert HIDDEN in page
    assert "The call may fail" not in page


@pytest.mark.parametrize(
    "schema, value, fits",
    [
        ({"type": "integer"}, 2.0, True),
        ({"type": "integer"}, 2.5, False),
        ({"type": "number"}, True, False),
        ({"type": ["string", "null"]}, None, True),
        ({"type": "object"}, [], False),
        ({"anyOf": [{"type": "string"}]}, 1, True),
        ({"type": "decimal"}, "x", True),
        (True, 1, True),
        ({"type": "number"}, {"$type": "float", "value": "1e+17"}, True),
    ],
)
def test_only_what_the_type_of_an_argument_rules_out_does_not_fit(
    schema: Any, value: Any, fits: bool
) -> None:
    assert (unfit({"it": value}, {"properties": {"it": schema}}) == "") is fits


@pytest.mark.django_db
@pytest.mark.parametrize(
    "keys, patterns",
    [(["edited"], []), (["sent"], []), (["arguments"], []), (["amount"], []), ([], ["CLM-77"])],
)
def test_a_call_that_is_asked_about_again_is_approved_unchanged_whatever_of_it_is_hidden(
    operator: Client, settings: Any, keys: list[str], patterns: list[str]
) -> None:
    session = refund(**REFUND)
    before = {"claim": "CLM-77", "amount": 80}
    Approval.objects.update(edited=before)
    settings.AGENTSTATE_MASK_KEYS, settings.AGENTSTATE_MASK_PATTERNS = keys, patterns
    address = f"/sessions/{session.pk}/approve/"
    page = operator.get(address, {"call": Approval.objects.get().call_id})
    fields = page.context["card"].fields
    shown = page.context["form"].initial
    sent = {name: shown[name] for name in ("version", "call_id", "fingerprint")}
    answer = operator.post(address, sent | {field.input_name: field.value for field in fields})
    assert answer.status_code == 302
    approval = Approval.objects.get()
    assert (approval.decision, approval.edited) == ("approved", before)
