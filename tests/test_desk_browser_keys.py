"""In a real browser, by keyboard and touch: the main action is near, steps open, and buttons that are off say why."""

import re

import pytest
from playwright.sync_api import expect

from tests import builders
from tests.browsing import log_in
from tests.test_desk_browser import context, page  # noqa: F401

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.django_db(transaction=True)]


def test_the_main_action_of_a_session_is_reached_with_three_keys(page):  # noqa: F811
    page.goto(f"/sessions/{builders.paused().pk}/")
    for key in ("Tab", "Enter", "Tab"):
        page.keyboard.press(key)
    expect(page.get_by_role("button", name="Resume…")).to_be_focused()


def test_enter_opens_the_chosen_step_and_folds_it_again(page):  # noqa: F811
    page.goto(f"/sessions/{builders.done().pk}/")
    step = page.locator("#timeline > .step", has=page.locator(".call")).first
    step.evaluate("(step) => { step.tabIndex = -1; step.focus(); }")
    details = step.locator(".call details.more").first
    page.keyboard.press("Enter")
    expect(details).to_have_attribute("open", "")
    page.keyboard.press("Enter")
    expect(details).not_to_have_attribute("open", "")


@pytest.mark.parametrize("by", ["keyboard", "pointer"])
def test_a_button_that_is_off_says_why(page, by):  # noqa: F811
    page.goto(f"/sessions/{builders.waiting_for_approval().pk}/")
    button = page.get_by_role("button", name="Resume", exact=True)
    if by == "keyboard":
        button.focus()
        page.keyboard.press("Enter")
    else:
        button.click(force=True)
    expect(page.locator("#why-not-resume")).to_be_visible()
    expect(page.locator("#why-not-resume")).to_have_text(
        "It waits for an approval: approve or reject the call first."
    )


def test_the_actions_of_a_step_are_seen_without_hovering(page):  # noqa: F811
    page.goto(f"/sessions/{builders.done().pk}/")
    link = page.get_by_role("link", name="rewind to here").first
    assert link.evaluate("(link) => getComputedStyle(link.parentElement).opacity") == "1"


def test_on_the_page_of_a_dialog_no_other_dialog_opens_over_its_form(context):  # noqa: F811
    tab, session = log_in(context), builders.done()
    tab.goto(f"/sessions/{session.pk}/rewind/")
    tab.locator("main .choices a").first.click()
    expect(tab.get_by_label("Reason")).to_be_visible()
    expect(tab.locator("form.dialog")).to_have_count(1)
    expect(tab.locator("dialog[open]")).to_have_count(0)
    tab.get_by_role("button", name="Rewind").click()
    expect(tab.get_by_text("Say why: the reason is kept in the audit trail.")).to_be_visible()
    expect(tab.get_by_label("Reason")).to_be_focused()
    tab.get_by_label("Reason").fill("The note was wrong")
    tab.keyboard.press("Control+Enter")
    expect(tab).to_have_url(re.compile(rf"/sessions/{session.pk}/$"))


def test_the_help_about_keys_opens_over_the_page_and_is_closed_by_a_button(page):  # noqa: F811
    page.goto("/")
    page.keyboard.press("?")
    expect(page.locator("#dialog h1")).to_have_text("Keys")
    page.locator("#dialog").get_by_role("link", name="Close").click()
    expect(page.locator("#dialog")).to_be_hidden()
    expect(page).to_have_url("/inbox/")


ONE_LINE = {
    "an approval": [builders.waiting_for_approval],
    "a call in doubt": [builders.in_doubt],
    "a stuck session": [builders.lost],
    "a failed session": [builders.failed],
    "like failures": [builders.failed, builders.failed],
}


@pytest.mark.parametrize("kind", ONE_LINE)
def test_enter_opens_the_chosen_line_of_the_inbox(page, kind):  # noqa: F811
    sessions = [build() for build in ONE_LINE[kind]]
    page.goto("/inbox/")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(page).to_have_url(
        re.compile(rf"/sessions/{sessions[0].pk}/" if len(sessions) == 1 else r"/\?.*failure=")
    )


def test_each_approval_within_a_step_is_reached_by_the_keys_that_choose_rows(page):  # noqa: F811
    history = builders.looked_up()
    history.reply(calls=[("issue_refund", {"claim": f"CLM-{number}", "amount": 120}) for number in (1, 2)])
    for call in history.calls[-2:]:
        history.ask(call)
    page.goto(f"/sessions/{history.rest('waiting', waiting_for='approval').pk}/")
    cards = page.locator("[data-card]")
    expect(cards).to_have_count(2)
    rows = page.locator("[data-row], [data-card]")
    number = rows.count()
    chosen = "() => [...document.querySelectorAll('[data-row], [data-card]')].indexOf(document.activeElement)"
    down = []
    for _ in range(number):
        page.keyboard.press("j")
        down.append(page.evaluate(chosen))
    assert down == list(range(number))
    up = []
    for _ in range(number - 1):
        page.keyboard.press("k")
        up.append(page.evaluate(chosen))
    assert up == down[-2::-1]
