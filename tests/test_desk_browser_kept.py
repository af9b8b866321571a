"""In a real browser: what live pages are sent leaves the focus, what is selected and what is open where they are."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone
from playwright.sync_api import Browser, BrowserContext, Locator, Page, expect

from sessions_app.actions import bulk
from sessions_app.models import BulkAction
from tests import builders
from tests.browsing import log_in
from tests.test_desk_browser_inbox import ask_for_the_lines, reject_elsewhere
from tests.test_desk_browser_live import poll

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("nothing_runs"),
]
older_too = pytest.mark.parametrize("moves", ["as it can", "like older browsers"])
SELECTED = "String(document.getSelection())"


@pytest.fixture
def context(browser: Browser, live_server: Any) -> Iterator[BrowserContext]:
    made = browser.new_context(base_url=live_server.url, viewport={"width": 1280, "height": 900})
    yield made
    made.close()


@pytest.fixture
def page(context: BrowserContext) -> Page:
    return log_in(context)


def select(place: Locator) -> None:
    place.evaluate("element => document.getSelection().selectAllChildren(element)")


def ask_at_once(page: Page, part: str) -> None:
    """For this live part, and no more by the clock."""
    page.evaluate(
        "(part) => { const live = document.querySelector(part); live.setAttribute('hx-trigger', 'now');"
        "htmx.process(live); htmx.trigger(live, 'now') }",
        part,
    )


def looked_up(number: int) -> builders.History:
    history = builders.looked_up(title="Windscreen of POL-7")
    for index in range(number):
        history.lookup(f"POL-1{index}")
    history.rest("running")
    return history


def test_a_field_that_was_changed_and_put_back_shows_what_is_asked_for_since(page: Page) -> None:
    builders.waiting_for_approval()
    page.goto("/inbox/")
    page.get_by_text("Edit", exact=True).first.click()
    field = page.locator("[data-card] input[name=arg-amount]").first
    asked = field.input_value()
    field.fill("5")
    field.fill(asked)
    page.evaluate(
        "(asked) => { const lines = document.querySelector('#lines');"
        'const sent = lines.outerHTML.replaceAll(`value="${asked}"`, \'value="81.5"\');'
        "htmx.swap(lines, sent, {swapStyle: 'morph'}) }",
        asked,
    )
    expect(field).to_have_value("81.5")


@pytest.mark.parametrize("tab, part", [("", "#sentinel"), ("conversation/", "#talk"), ("state/", "#newer")])
def test_a_change_leaves_the_focus_and_the_selection_in_the_header_of_a_session(
    page: Page, tab: str, part: str
) -> None:
    history = looked_up(1)
    page.goto(f"/sessions/{history.session.pk}/{tab}")
    head = page.locator("#session-head")
    pause = head.get_by_role("button", name="Pause…")
    pause.focus()
    select(head.locator("h1"))
    steps = head.get_by_text("steps done").inner_text()
    history.lookup("POL-8")
    ask_at_once(page, part)
    expect(head.get_by_text("steps done")).not_to_have_text(steps)
    expect(pause).to_be_focused()
    assert page.evaluate(SELECTED) == "Windscreen of POL-7"
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog", name="Pause")).to_be_visible()


def test_a_change_leaves_open_what_a_button_that_does_not_work_says(page: Page) -> None:
    history = looked_up(1)
    page.goto(f"/sessions/{history.session.pk}/")
    page.locator("#session-head").get_by_role("button", name="Resume").click(force=True)
    why = page.locator("#why-not-resume")
    expect(why).to_be_visible()
    history.lookup("POL-8")
    poll(page)
    expect(page.locator("#timeline")).to_contain_text("POL-8")
    expect(why).to_be_visible()


@older_too
def test_details_that_are_open_or_focused_stay_so_when_their_part_changes(page: Page, moves: str) -> None:
    if moves == "like older browsers":
        page.add_init_script("delete Element.prototype.moveBefore")
    history = looked_up(1)
    page.goto(f"/sessions/{history.session.pk}/")
    facts = page.locator("#facts details")
    facts.locator("summary").click()
    page.locator("#timeline .foot details > summary").last.focus()
    history.lookup("POL-8")
    poll(page)
    expect(page.locator("#timeline")).to_contain_text("POL-8")
    expect(facts).to_have_attribute("open", "")
    focused = page.locator(":focus")
    expect(focused).to_have_text("Details")
    page.keyboard.press("Enter")
    expect(page.locator(".foot details[open]")).to_have_count(1)


def test_a_message_that_is_selected_on_the_conversation_stays_so_while_another_arrives(page: Page) -> None:
    history = looked_up(0)
    page.goto(f"/sessions/{history.session.pk}/conversation/")
    message = page.locator("#talk .say").first
    select(message)
    selected = page.evaluate(SELECTED)
    assert selected
    history.reply("It is covered too.")
    history.end("It is covered too.")
    ask_at_once(page, "#talk")
    expect(page.locator("#talk")).to_contain_text("It is covered too.")
    assert page.evaluate(SELECTED) == selected


@older_too
def test_the_focus_stays_on_the_button_of_its_approval_while_others_come_and_go(
    page: Page, moves: str
) -> None:
    if moves == "like older browsers":
        page.add_init_script("delete Element.prototype.moveBefore")
    now = timezone.now()
    for number in range(3):
        builders.waiting_for_approval(
            title=f"Claim {number}", created_at=now - timedelta(minutes=30 - number)
        )
    page.goto("/inbox/")
    approve = page.locator(".item").filter(has_text="Claim 1").get_by_role("button", name="Approve")
    approve.focus()
    reject_elsewhere("Claim 0")
    builders.waiting_for_approval(title="Claim 9")
    ask_for_the_lines(page)
    expect(page.locator(".item")).to_contain_text(["Claim 1", "Claim 2", "Claim 9"])
    expect(approve).to_be_focused()
    # Where it is gone itself, the keyboard goes on in the next line, on none of its buttons.
    reject_elsewhere("Claim 1")
    ask_for_the_lines(page)
    expect(page.locator(".item")).to_contain_text(["Claim 2", "Claim 9"])
    expect(page.locator(".item").first.locator("[data-card]")).to_be_focused()


def test_stop_keeps_the_focus_while_a_bulk_action_goes_on(page: Page) -> None:
    for number in range(3):
        builders.running(title=f"Roof {number}")
    page.goto("/bulk/?queue=all&kind=pause")
    page.get_by_label("Reason").fill("The provider is down")
    page.get_by_role("button", name="Pause (3)").click()
    stop = page.get_by_role("button", name="Stop")
    stop.focus()
    expect(page.locator("#progress")).to_contain_text("0 done")
    BulkAction.objects.get().items.filter(session__title="Roof 0").update(
        outcome="done", done_at=timezone.now()
    )
    ask_at_once(page, "#progress")
    expect(page.locator("#progress")).to_contain_text("1 done")
    expect(stop).to_be_focused()
    while bulk.run_batch(BulkAction.objects.get().pk):
        pass
    ask_at_once(page, "#progress")
    expect(page.locator("#progress")).to_contain_text("Finished")
    assert not page.locator("#progress").get_attribute("hx-get")


def test_who_asks_for_earlier_steps_by_keyboard_goes_on_in_what_came(page: Page) -> None:
    history = looked_up(60)
    page.goto(f"/sessions/{history.session.pk}/")
    for _ in range(2):
        earlier = page.get_by_role("link", name="Earlier steps")
        address = earlier.get_attribute("href") or ""
        earlier.focus()
        page.keyboard.press("Enter")
        expect(page.locator(f"#timeline a[href='{address}']")).to_have_count(0)
        assert page.evaluate("document.querySelector('#timeline > li').contains(document.activeElement)")


def test_what_is_asked_for_again_while_an_answer_is_on_its_way_is_shown_once(page: Page) -> None:
    history = looked_up(1)
    page.goto(f"/sessions/{history.session.pk}/")
    asked: list[Any] = []

    def hold(route: Any) -> None:
        asked.append(route)

    page.route("**/live/**", hold)
    expect(page.locator("#sentinel.htmx-request")).to_have_count(1)
    history.lookup("POL-8")
    page.evaluate("htmx.trigger('#sentinel', 'network')")
    while asked:
        asked.pop(0).continue_()
    page.unroute_all()
    expect(page.locator("#timeline")).to_contain_text("POL-8")
    history.reply("It is covered too.")
    history.end("It is covered too.")
    expect(page.locator("#timeline")).to_contain_text("It is covered too.")
    expect(page.locator(".call").filter(has_text="POL-8")).to_have_count(1)


def test_a_list_in_which_sessions_are_selected_says_that_it_is_not_updated(page: Page) -> None:
    history = looked_up(1)
    session = history.session
    page.goto("/?queue=all")
    state = page.locator(f"#s{session.pk} .pill")
    expect(state).to_have_text("Running")
    note = page.get_by_text("The list is not being updated while you select sessions.")
    expect(note).to_be_hidden()
    tick = page.locator(f"#s{session.pk} input[name=pick]")
    tick.check()
    history.rest("paused")
    ask_at_once(page, "#list")
    expect(note).to_be_visible()
    expect(state).to_have_text("Running")
    page.set_viewport_size({"width": 1280, "height": 300})  # less than the list takes
    expect(note).to_be_in_viewport(ratio=1)
    page.set_viewport_size({"width": 1280, "height": 900})
    tick.uncheck()
    tick.blur()
    ask_at_once(page, "#list")
    expect(state).to_have_text("Paused")
    expect(note).to_be_hidden()
