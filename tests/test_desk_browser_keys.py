"""In a real browser, by keyboard and touch: the main action is near, steps open, and buttons that are off say why."""

import re

import pytest
from playwright.sync_api import expect

from sessions_app.models import Approval, ToolCall
from tests import builders
from tests.browsing import log_in
from tests.test_desk_browser import context, page  # noqa: F401
from tests.test_desk_repair import held

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


def none_is_decided() -> bool:
    return set(Approval.objects.values_list("decision", flat=True)) == {""}


FIELDS = {"the text": "#batch-text", "a tick": "input[name=call]", "an argument": "input[name$=amount]"}


@pytest.mark.parametrize("javascript", [True, False])
@pytest.mark.parametrize("field", FIELDS)
def test_enter_in_a_field_decides_none_of_several_calls(browser, live_server, field, javascript):
    for number in range(2):
        builders.waiting_for_approval(title=f"Claim {number}")
    context = browser.new_context(base_url=live_server.url, java_script_enabled=javascript)  # noqa: F811
    tab = log_in(context)
    tab.goto("/inbox/?tool=issue_refund")
    tab.locator("input[name=call]").first.check()
    tab.locator("#batch-text").fill("Not covered")
    tab.locator("details.edit > summary").last.click()
    tab.locator(FIELDS[field]).last.focus()
    tab.keyboard.press("Enter")
    if javascript:
        expect(tab.get_by_role("button", name="Approve selected")).to_be_focused()
    else:
        expect(tab.get_by_role("alert")).to_have_text("Nothing was decided. Choose Approve or Reject.")
    expect(tab.locator("#batch-text")).to_have_value("Not covered")
    expect(tab.locator("input[name=call]").first).to_be_checked()
    assert none_is_decided()
    context.close()


@pytest.mark.parametrize("javascript", [True, False])
def test_enter_in_an_edited_argument_of_a_repeated_call_keeps_the_edit_and_decides_nothing(
    browser, live_server, javascript
):
    session = held()
    context = browser.new_context(base_url=live_server.url, java_script_enabled=javascript)  # noqa: F811
    tab = log_in(context)
    tab.goto(f"/sessions/{session.pk}/")
    tab.locator("details.edit > summary").click()
    tab.get_by_label("Amount", exact=True).fill("75")
    tab.keyboard.press("Enter")
    if javascript:
        expect(tab.get_by_role("button", name="Run it again")).to_be_focused()
    else:
        expect(tab.get_by_role("alert")).to_contain_text("Nothing was decided")
        expect(tab.get_by_role("link", name="Use the recorded result")).to_be_visible()
    expect(tab.get_by_label("Amount", exact=True)).to_have_value("75")
    assert none_is_decided()
    context.close()


@pytest.mark.parametrize(
    "field", ["Amount", "Note (optional, for the audit trail)", "Pre-approve issue_refund"]
)
def test_enter_in_a_field_of_an_approval_brings_the_focus_to_its_button_even_if_held(page, field):  # noqa: F811
    builders.waiting_for_approval()
    page.goto("/inbox/")
    page.locator("details.edit > summary").click()
    page.get_by_label(field, exact=field == "Amount").focus()
    page.keyboard.down("Enter")
    expect(page.get_by_role("button", name="Approve")).to_be_focused()
    page.keyboard.down("Enter")
    page.keyboard.up("Enter")
    assert none_is_decided()
    page.keyboard.press("Enter")
    expect(page.locator(".toast")).to_contain_text("Approved.")


@pytest.mark.parametrize("build", [builders.waiting_for_approval, builders.in_doubt])
def test_enter_in_a_field_of_a_dialog_that_decides_a_call_brings_the_focus_to_its_button(page, build):  # noqa: F811
    session = build()
    action = "approve" if build is builders.waiting_for_approval else "decide"
    call = ToolCall.objects.filter(branch__session=session).latest("position").pk
    page.goto(f"/sessions/{session.pk}/{action}/?call={call}&decision=again")
    page.get_by_label("Note" if action == "approve" else "Reason").fill("Seen on the account")
    page.locator("main form input:not([type=hidden])").first.focus()
    page.keyboard.press("Enter")
    expect(page.locator("main button.first")).to_be_focused()
    assert ToolCall.objects.get(pk=call).status == ("planned" if action == "approve" else "doubt")
    assert not Approval.objects.exclude(decision="").exists()
