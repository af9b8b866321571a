"""The desk on a phone of 390 px: whole words, targets that are big enough, the main action in reach."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from sessions_app.models import Worker
from tests import builders
from tests.browsing import log_in

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.django_db(transaction=True)]

# Links within a sentence are exempt, as in WCAG 2.5.8; so is what only a keyboard reaches.
TOO_LOW = """() => [...document.querySelectorAll("a[href], button, summary, input:not([type=hidden]), select")]
  .filter((control) => control.offsetParent && !control.closest("p:not(.chips, .acts, .pages), .skip, .unseen, dd, h2"))
  .map((control) => [control.closest("label") || control, control])
  .filter(([area]) => area.getBoundingClientRect().height < 39.5)
  .map(([area, control]) => `${control.tagName}.${control.className} ${control.textContent.trim().slice(0, 40)}`)"""

# A column that is narrower than its longest word shows one or two letters in a line.
BROKEN_CELLS = """() => [...document.querySelectorAll("td")]
  .filter((cell) => cell.offsetParent && cell.textContent.trim().length > 3 && cell.clientWidth < 60)
  .map((cell) => cell.textContent.trim())"""


@pytest.fixture
def phone(browser: Browser, live_server) -> Iterator[Page]:
    context = browser.new_context(
        base_url=live_server.url, viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True
    )
    yield log_in(context)
    context.close()


def test_tables_are_rows_on_a_phone_and_everything_that_is_tapped_is_40_px_high(phone):
    Worker.objects.create(name="worker-1.example.com:4711")
    waiting = builders.waiting_for_approval(title="Approval", tags=["glass"])
    rewound = builders.rewound(title="Rewound")
    wrong = {}
    for address in (
        "/",
        "/?queue=all",
        "/start/",
        "/agents/",
        "/agents/claims/",
        "/workers/",
        "/bulk/?queue=all",
        "/bulk/actions/",
        "/views/",
        f"/sessions/{waiting.pk}/",
        f"/sessions/{rewound.pk}/",
        f"/sessions/{rewound.pk}/conversation/",
        f"/sessions/{rewound.pk}/state/",
        f"/sessions/{rewound.pk}/checkpoints/",
        f"/sessions/{rewound.pk}/audit/",
        f"/sessions/{rewound.pk}/rewind/",
    ):
        phone.goto(address)
        wrong[address] = phone.evaluate(TOO_LOW) + phone.evaluate(BROKEN_CELLS)
    assert {address: found for address, found in wrong.items() if found} == {}


def test_on_a_phone_the_timeline_begins_on_the_first_screen_and_the_charts_unfold(phone):
    session = builders.waiting_for_approval()
    phone.goto(f"/sessions/{session.pk}/")
    expect(phone.locator("#pictures")).to_be_hidden()
    assert phone.locator("#timeline > .step").first.bounding_box()["y"] < 844
    phone.get_by_label("Show phases and time").check()
    expect(phone.locator("#pictures")).to_be_visible()


def test_on_a_phone_the_main_action_stays_in_reach(phone):
    session = builders.waiting_for_approval()
    phone.goto(f"/sessions/{session.pk}/")
    action = phone.get_by_role("link", name="Review approval")
    expect(action).to_be_in_viewport(ratio=1)
    phone.evaluate("window.scrollTo(0, document.body.scrollHeight)")
    expect(action).to_be_in_viewport(ratio=1)
