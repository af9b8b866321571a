"""How texts stand on a page: in whole words, in their order, and with what is not seen by name, on each width."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, Locator, Page, expect

from sessions_app.models import Approval, RegisteredAgent, Session
from tests import builders
from tests.browsing import log_in

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True), pytest.mark.slow]

every_width = pytest.mark.parametrize("width", [1280, 390])
# The words that are broken in two.
BROKEN_WORDS = r"""(element) => {
  const broken = [], range = document.createRange();
  const walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    if (!node.parentElement.offsetParent) continue;
    for (const word of node.data.matchAll(/\S+/g)) {
      range.setStart(node, word.index);
      range.setEnd(node, word.index + word[0].length);
      if (new Set([...range.getClientRects()].map((rect) => rect.top)).size > 1) broken.push(word[0]);
    }
  }
  return broken;
}"""
# Where a text begins on its line, from the left.
PLACE_OF = r"""(element, text) => {
  const range = document.createRange(), walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const at = node.data.indexOf(text);
    if (at < 0) continue;
    range.setStart(node, at);
    range.setEnd(node, at + text.length);
    return range.getBoundingClientRect().left;
  }
}"""
HIDDEN_ORDER = "12\u202e redro rof 00.5€ kcab yaP"


@pytest.fixture
def context(browser: Browser, live_server, width: int) -> Iterator[BrowserContext]:
    made = browser.new_context(base_url=live_server.url, viewport={"width": width, "height": 900})
    yield made
    made.close()


@pytest.fixture
def page(context: BrowserContext) -> Page:
    return log_in(context)


def paying(number: str, *, summary: str = "Pay back {amount} for order {number}", **fields: str) -> Session:
    """A session that waits for the approval of a payment."""
    builders.agent(title=fields.pop("agent_title", "Claims desk"))
    tool = builders.tool(
        "pay_back",
        properties={"number": {"type": "string"}, "amount": {"type": "number"}},
        approval=True,
        summary=summary,
        formats={"amount": "money:EUR"},
    )
    RegisteredAgent.objects.update(tools=[tool])
    history = builders.asked(**fields)
    history.reply("", [("pay_back", {"number": number, "amount": 9000})])
    history.ask(history.calls[-1])
    return history.rest("waiting", waiting_for="approval", why="pay_back needs approval.")


def places(within: Locator, *texts: str) -> list[float]:
    return [within.evaluate(PLACE_OF, text) for text in texts]


@every_width
def test_the_label_of_a_button_is_read_as_one_line_of_whole_words(page: Page, width: int) -> None:
    session = paying("1042")
    RegisteredAgent.objects.update(definition="e" * 64)
    for address in ("/inbox/?kind=approval", f"/sessions/{session.pk}/"):
        page.goto(address)
        button = page.get_by_role("button", name="Approve")
        expect(button).to_have_accessible_name("Approve €9,000.00 and continue with the new definition")
        assert button.evaluate(BROKEN_WORDS) == []
        assert button.evaluate("(button) => getComputedStyle(button).display") != "inline-flex"
        box = button.bounding_box()
        assert box is not None
        assert 30 < box["height"] < 64


@every_width
def test_the_button_that_reveals_a_result_stands_below_it_on_one_line(
    page: Page, width: int, settings
) -> None:
    settings.AGENTSTATE_MASK_KEYS = ["iban"]
    builders.user("supervisor", "sue")
    page.context.clear_cookies()
    log_in(page.context, "sue")
    history = builders.refunding()
    history.finish(history.calls[-1], {"iban": "DE89370400440532013000"})
    history.checkpoint("step")
    session = history.rest("paused")
    page.goto(f"/sessions/{session.pk}/")
    reveal = page.locator(".call > .reveal")
    expect(reveal).to_be_visible()
    assert reveal.evaluate(BROKEN_WORDS) == []
    box, result = reveal.bounding_box(), page.locator(".call:has(> .reveal) > .note").first.bounding_box()
    assert box is not None
    assert result is not None
    assert abs(box["x"] - result["x"]) < 2
    assert box["y"] > result["y"]


@every_width
def test_a_text_that_is_written_from_right_to_left_leaves_the_rest_in_order(page: Page, width: int) -> None:
    paying(
        "הזמנה",
        summary="Order {number} {amount} paid back",
        customer="רות",
        title="שלום עולם",
        agent_title="סוכן",
    )
    page.goto("/inbox/?kind=approval")
    sentence = places(page.locator(".what.summary"), "Order", "הזמנה", "9,000.00", "paid back")
    assert sentence == sorted(sentence)
    of = places(page.locator(".foot .more .soft"), "סוכן", "·", "רות")
    assert of == sorted(of)


@every_width
def test_an_argument_that_is_edited_is_shown_with_what_is_not_seen(page: Page, width: int) -> None:
    paying(HIDDEN_ORDER, customer="Ann\u202enosliW")
    page.goto("/inbox/?kind=approval")
    sentence = page.locator(".what.summary")
    expect(sentence).to_have_text("Pay back €9,000.00 for order 12⟨U+202E⟩ redro rof 00.5€ kcab yaP")
    page.locator("details.edit > summary").click()
    field = page.get_by_label("Number", exact=True)
    assert field.input_value() == HIDDEN_ORDER
    field.fill(f"{HIDDEN_ORDER}\u200d!")
    expect(sentence).to_have_text("Pay back €9,000.00 for order 12⟨U+202E⟩ redro rof 00.5€ kcab yaP⟨U+200D⟩!")
    page.get_by_role("button", name="Approve").click()
    expect(page.locator(".toast")).to_contain_text("⟨U+202E⟩")
    assert Approval.objects.get().edited == {"number": f"{HIDDEN_ORDER}\u200d!", "amount": 9000}


@every_width
def test_a_message_and_a_reply_keep_their_lines_and_the_indentation_of_code(page: Page, width: int) -> None:
    code = "def twice(number):\n    return number * 2\n\tdone  here"
    history = builders.History()
    history.user(code)
    history.reply(code)
    history.end(code)
    session = history.rest("idle")
    for tab, which in (("", "#timeline .say"), ("conversation/", "#talk .say")):
        page.goto(f"/sessions/{session.pk}/{tab}")
        assert [text.rstrip() for text in page.locator(which).all_inner_texts()] == [code, code]


@every_width
def test_an_argument_of_several_lines_is_approved_as_it_is_shown(page: Page, width: int) -> None:
    paying("Dear Ada,\n\n  1042\n  1043")
    page.goto("/inbox/?kind=approval")
    assert page.locator("dl.asked code").first.inner_text() == "Dear Ada,\n\n  1042\n  1043"
    page.locator("details.edit > summary").click()
    page.get_by_label("Number", exact=True).fill("Dear Bob,\n  1042")
    assert page.locator("dl.asked ins code").first.inner_text() == "Dear Bob,\n  1042"


@pytest.mark.parametrize("width", [1280, 820, 640, 390])
def test_the_words_beside_the_times_of_a_session_are_as_large_as_others(page: Page, width: int) -> None:
    session = builders.looked_up().rest("running")
    page.goto(f"/sessions/{session.pk}/")
    fold = page.get_by_label("Show phases and time")
    if fold.is_visible():
        fold.check()
    word = page.locator(".strip text").last
    box = word.bounding_box()
    assert box is not None
    assert 10 < box["height"] < 25
