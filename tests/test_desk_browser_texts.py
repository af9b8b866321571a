"""How texts stand on a page: in whole words, on each width."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from sessions_app.models import RegisteredAgent, Session
from tests import builders
from tests.test_desk_browser import log_in

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
