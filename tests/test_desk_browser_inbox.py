"""The inbox in a browser: compact cards, editing on demand, dialogs that stay dialogs, and what is typed is kept."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone
from playwright.sync_api import Browser, BrowserContext, Page, expect

from sessions_app import actions
from sessions_app.models import Approval, Session
from tests import builders
from tests.browsing import log_in, problems
from tests.test_desk_browser import every_screen

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True), pytest.mark.slow]


@pytest.fixture
def context(browser: Browser, live_server: Any) -> Iterator[BrowserContext]:
    made = browser.new_context(base_url=live_server.url, viewport={"width": 1280, "height": 900})
    yield made
    made.close()


@pytest.fixture
def page(context: BrowserContext) -> Page:
    return log_in(context)


def ago(minutes: int) -> Any:
    return timezone.now() - timedelta(minutes=minutes)


def test_three_approvals_fit_a_screen_and_one_is_approved_with_an_edit(page):
    for number in range(3):
        history = builders.refunding(title=f"Claim {number}", created_at=ago(30 - number))
        history.ask(history.calls[-1], expires_at=timezone.now() + timedelta(minutes=53))
        history.rest("waiting", waiting_for="approval")
    page.goto("/inbox/")
    bottom = page.locator(".item").nth(2).bounding_box()
    assert bottom is not None
    assert bottom["y"] + bottom["height"] < 900
    first = page.locator(".item").first
    expect(first.get_by_label("Amount", exact=True)).to_be_hidden()
    page.keyboard.press("j")
    page.keyboard.press("e")
    expect(first.get_by_label("Claim", exact=True)).to_be_focused()
    first.get_by_label("Amount", exact=True).fill("80")
    first.get_by_role("button", name="Approve edited").click()
    expect(page.locator(".toast")).to_contain_text("Claim 0 · Issue refund · Approved.")
    expect(page.locator(".item")).to_have_count(2)
    assert Approval.objects.get(session__title="Claim 0").edited == {"claim": "CLM-1042", "amount": 80}


def test_a_dialog_with_an_error_stays_a_dialog_with_the_focus_on_what_is_wrong(page):
    builders.waiting_for_approval()
    page.goto("/inbox/")
    page.evaluate("window.sameDocument = true")
    page.get_by_role("button", name="Reject…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="Reject").click()
    expect(dialog).to_contain_text("Tell the agent why")
    expect(dialog.get_by_label("Message to the agent")).to_be_focused()
    page.keyboard.type("Not this one")
    page.keyboard.press("Control+Enter")
    expect(page.locator(".toast")).to_contain_text("Rejected.")
    expect(page).to_have_url(f"{page.url.split('/inbox/')[0]}/inbox/#inbox-heading")


def test_the_keyboard_goes_on_at_the_next_card_and_escape_gives_up_an_edit(page):
    for number in range(2):
        builders.waiting_for_approval(title=f"Claim {number}", created_at=ago(30 - number))
    page.goto("/inbox/")
    page.keyboard.press("j")
    page.keyboard.press("e")
    first, second = page.locator(".item").nth(0), page.locator(".item").nth(1)
    first.get_by_label("Amount", exact=True).fill("80")
    page.keyboard.press("Escape")
    expect(first.get_by_label("Amount", exact=True)).to_be_hidden()
    expect(first.locator("details.edit > summary")).to_be_focused()
    expect(first.get_by_label("Amount", exact=True)).to_have_value("120")
    expect(page.locator("#announce")).to_contain_text("Edit discarded.")
    remaining = second.locator("[data-card]").get_attribute("id")
    page.keyboard.press("a")
    page.keyboard.press("Enter")
    expect(page.locator(".item")).to_have_count(1)
    expect(page.locator(f"#{remaining}")).to_be_focused()
    page.keyboard.press("a")
    page.keyboard.press("Enter")
    expect(page.get_by_text("Nothing needs attention.")).to_be_visible()
    expect(page.get_by_role("heading", name="Inbox")).to_be_focused()
    assert not Approval.objects.exclude(edited=None).exists()


def test_a_second_dialog_opens_after_the_first_was_cancelled(page):
    builders.waiting_for_approval()
    page.goto("/inbox/")
    for _ in range(2):
        page.get_by_role("button", name="Reject…").click()
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text("Message to the agent")
        dialog.get_by_role("link", name="Cancel").click()
        expect(dialog).to_be_hidden()


def test_a_wrong_argument_of_a_card_opens_the_dialog_with_that_field_marked(page):
    builders.waiting_for_approval()
    page.goto("/inbox/")
    page.locator("details.edit > summary").click()
    page.get_by_label("Amount", exact=True).fill("9000")
    page.get_by_role("button", name="Approve edited").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("amount must be at most 500")
    amount = dialog.get_by_label("Amount", exact=True)
    expect(amount).to_be_focused()
    expect(amount).to_have_value("9000")
    amount.fill("90")
    dialog.get_by_role("button", name="Approve").click()
    expect(page.locator(".toast")).to_contain_text("Approved.")
    assert Approval.objects.get().edited == {"claim": "CLM-1042", "amount": 90}


def test_a_rewind_is_undone_from_its_toast(page):
    session = builders.done()
    first = builders.branch_of(session).checkpoints.earliest("position")
    page.goto(f"/sessions/{session.pk}/rewind/?checkpoint={first.pk}")
    page.get_by_label("Reason").fill("Wrong policy")
    page.get_by_role("button", name="Rewind", exact=True).click()
    page.locator(".toast").get_by_role("link", name="Undo").click()
    expect(page.get_by_role("dialog", name="Undo the rewind")).to_be_visible()


def reject_elsewhere(title: str) -> None:
    approval = Approval.objects.get(session__title=title)
    actions.reject(
        actor=builders.SYSTEM,
        session_id=approval.session_id,
        call_id=approval.call_id,
        message="No, not this one.",
    )


def ask_for_the_lines(page: Page) -> None:
    """Ask at once for the lines of the inbox as they are now, and no more by the clock."""
    with page.expect_response(lambda response: "seen=" in response.url):
        page.evaluate(
            "const lines = document.querySelector('#lines'); lines.setAttribute('hx-trigger', 'now');"
            "htmx.process(lines); htmx.trigger(lines, 'now')"
        )


@pytest.mark.parametrize("moves", ["as it can", "like older browsers"])
def test_what_is_typed_in_a_line_is_kept_while_the_other_lines_change(page, moves):
    if moves == "like older browsers":
        page.add_init_script("delete Element.prototype.moveBefore")
    for number in range(2):
        builders.waiting_for_approval(title=f"Claim {number}", created_at=ago(30 - number))
    page.goto("/inbox/")
    edited = page.locator(".item").filter(has_text="Claim 0")
    edited.locator("details.edit > summary").click()
    amount = edited.get_by_label("Amount", exact=True)
    amount.fill("99")
    reject_elsewhere("Claim 1")
    builders.waiting_for_approval(title="Claim 2")
    ask_for_the_lines(page)
    expect(page.locator(".item")).to_contain_text(["Claim 0", "Claim 2"])
    expect(amount).to_have_value("99")
    expect(amount).to_be_focused()
    # Also without the focus, and with the lines as they are now.
    page.get_by_role("heading", name="Inbox").click()
    builders.waiting_for_approval(title="Claim 3")
    ask_for_the_lines(page)
    expect(page.locator(".item")).to_contain_text(["Claim 0", "Claim 2", "Claim 3"])
    expect(amount).to_have_value("99")
    edited.get_by_role("button", name="Approve edited").click()
    expect(page.locator(".toast")).to_contain_text("Claim 0")
    assert Approval.objects.get(session__title="Claim 0").edited == {"claim": "CLM-1042", "amount": 99}


def test_the_inbox_says_so_while_a_line_that_is_no_longer_listed_keeps_what_is_typed_in_it(page):
    builders.waiting_for_approval(title="First", created_at=ago(30))
    page.goto("/inbox/")
    page.locator("details.edit > summary").click()
    page.get_by_label("Amount", exact=True).fill("99")
    reject_elsewhere("First")
    builders.waiting_for_approval(title="Second")
    ask_for_the_lines(page)
    note = page.get_by_role("status").filter(has_text="The list is not being updated")
    expect(note).to_be_visible()
    expect(page.get_by_label("Amount", exact=True)).to_have_value("99")
    page.get_by_role("button", name="Discard edit").click()
    ask_for_the_lines(page)
    expect(note).to_be_hidden()
    expect(page.locator(".item")).to_contain_text(["Second"])


def test_ten_like_failures_are_one_line_and_are_tried_again_together(page):
    for number in range(10):
        builders.failed(title=f"Claim {number}", created_at=ago(20 - number))
    page.goto("/inbox/")
    expect(page.locator(".item")).to_have_count(1)
    page.get_by_role("link", name="Try all 10 again").click()
    expect(page.locator("main")).to_contain_text("10 of 10 sessions")
    page.goto("/inbox/")
    page.get_by_role("link", name="Open the 10").click()
    expect(page.locator("[data-row]")).to_have_count(10)


def test_a_call_in_doubt_is_decided_in_the_inbox_by_its_evidence(page):
    session = builders.in_doubt(title="Letter")
    page.goto("/inbox/")
    page.get_by_role("button", name="It took effect…").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("may or may not have taken effect")
    expect(dialog.get_by_label("Message to the agent")).to_be_hidden()
    dialog.get_by_label("Result", exact=True).fill("Paid, RF-7")
    dialog.get_by_label("Reason").fill("Seen on the account")
    dialog.get_by_role("button", name="Record result").click()
    expect(page.get_by_text("Nothing needs attention.")).to_be_visible()
    assert Session.objects.get(pk=session.pk).status == "queued"


@every_screen
def test_the_inbox_is_accessible_and_fits_the_screen(browser, live_server, width, scheme):
    builders.waiting_for_approval()
    doubt = builders.in_doubt()
    for build in (
        builders.failed,
        builders.failed,
        builders.retries_used_up,
        builders.changed,
        builders.lost,
    ):
        build()
    context = browser.new_context(
        base_url=live_server.url,
        viewport={"width": width, "height": 844},
        color_scheme=scheme,
        bypass_csp=True,
    )
    page = log_in(context)
    call = builders.branch_of(doubt).toolcalls.get(status="doubt")
    for address in (
        "/inbox/",
        "/inbox/?tool=issue_refund",
        f"/sessions/{doubt.pk}/decide/?call={call.pk}&decision=again",
    ):
        page.goto(address)
        for edit in page.locator("details.edit > summary").all():
            edit.click()
        assert problems(page) == "", address
        wide = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
        assert wide <= 0, f"{address} is {wide} px too wide"
    context.close()


def test_the_dialog_of_a_call_in_doubt_says_what_the_chosen_outcome_does_and_its_button_is_named_by_it(page):
    builders.in_doubt(title="Letter")
    page.goto("/inbox/")
    page.get_by_role("button", name="Skip…").click()
    dialog = page.get_by_role("dialog")
    twice, nothing_runs = dialog.get_by_text("takes effect twice"), dialog.get_by_text("nothing runs")
    expect(dialog.get_by_role("button", name="Skip", exact=True)).to_be_visible()
    expect(twice).to_be_hidden()
    expect(nothing_runs).to_be_visible()
    dialog.get_by_label("It did not: run again").check()
    expect(dialog.get_by_role("button", name="Run again", exact=True)).to_be_visible()
    expect(twice).to_be_visible()
    expect(nothing_runs).to_be_hidden()
    dialog.get_by_label("It took effect, with this result").check()
    dialog.get_by_role("button", name="Record result").click()
    expect(dialog.get_by_label("Result", exact=True)).to_be_focused()
    expect(dialog.get_by_role("button", name="Record result")).to_be_visible()
    dialog.get_by_label("Skip").check()
    expect(dialog.get_by_label("Result", exact=True)).to_be_hidden()
    expect(dialog.locator(".for-result .error")).to_be_hidden()


@pytest.mark.parametrize("action", ["Approve", "Reject…"])
def test_a_decision_on_the_session_page_stays_at_its_call(page, action):
    history = builders.refunding(title="Long")
    call = history.calls[-1]
    history.ask(call)
    session = history.rest("waiting", waiting_for="approval")
    page.set_viewport_size({"width": 1280, "height": 500})
    page.goto(f"/sessions/{session.pk}/")
    page.get_by_role("button", name=action, exact=True).click()
    if action == "Reject…":
        page.get_by_role("dialog").get_by_label("Message to the agent").fill("Not yet")
        page.get_by_role("dialog").get_by_role("button", name="Reject").click()
    expect(page.locator(".toast")).to_be_visible()
    expect(page.locator(f"#c{call.position}")).to_be_focused()
    expect(page.locator(f"#c{call.position}")).to_be_in_viewport()
    expect(page.locator("#session-head .pill")).to_have_text("Queued")


@pytest.mark.parametrize("build", [builders.failed, builders.in_doubt, builders.lost, builders.changed])
def test_a_line_that_is_one_session_has_one_button_that_stands_out(page, build):
    build()
    page.goto("/inbox/")
    expect(page.locator(".item")).to_have_count(1)
    expect(page.locator(".item .button.first")).to_have_count(1)
    expect(page.locator(".item .button.first")).to_be_enabled()


def two_refunds() -> Session:
    """Two open approvals of one session."""
    history = builders.looked_up()
    history.reply(calls=[("issue_refund", {"claim": f"CLM-{number}", "amount": 120}) for number in (1, 2)])
    for call in history.calls[-2:]:
        history.ask(call)
    return history.rest("waiting", waiting_for="approval")


@pytest.mark.parametrize("place", ["the session", "the inbox"])
def test_what_is_typed_in_a_card_is_kept_while_another_call_is_decided(page, place):
    session = two_refunds()
    page.goto("/inbox/" if place == "the inbox" else f"/sessions/{session.pk}/")
    cards = page.locator("[data-card]")
    for card in (cards.filter(has_text="CLM-1"), cards.filter(has_text="CLM-2")):
        card.locator("details.edit > summary").click()
        card.get_by_label("Amount", exact=True).fill("80")
    cards.filter(has_text="CLM-2").get_by_label("Note").fill("As agreed")
    cards.filter(has_text="CLM-2").get_by_label("Pre-approve").check()
    cards.filter(has_text="CLM-1").get_by_role("button", name="Approve edited").click()
    expect(page.locator(".toast")).to_contain_text("Approved.")
    expect(cards).to_have_count(1)
    expect(cards.get_by_label("Amount", exact=True)).to_have_value("80")
    expect(cards.get_by_label("Claim", exact=True)).to_have_value("CLM-2")
    expect(cards.get_by_label("Note")).to_have_value("As agreed")
    expect(cards.get_by_label("Pre-approve")).to_be_checked()
    expect(cards.locator("dl.asked").first).to_contain_text("will run with 80")
    page.reload()
    expect(cards.get_by_label("Amount", exact=True)).to_have_value("120")


def test_what_is_typed_in_a_card_is_not_kept_for_another_request(page):
    two_refunds()
    page.goto("/inbox/")
    cards = page.locator("[data-card]")
    cards.filter(has_text="CLM-2").locator("details.edit > summary").click()
    cards.filter(has_text="CLM-2").get_by_label("Amount", exact=True).fill("80")
    Approval.objects.filter(arguments__claim="CLM-2").update(fingerprint="0" * 64)
    cards.filter(has_text="CLM-1").get_by_role("button", name="Approve").click()
    expect(page.locator(".toast")).to_contain_text("Approved.")
    expect(cards.get_by_label("Amount", exact=True)).to_have_value("120")


def test_what_is_typed_in_a_card_is_kept_while_others_are_decided_together(page):
    for number in range(2):
        builders.waiting_for_approval(title=f"Claim {number}", created_at=ago(30 - number))
    page.goto("/inbox/?tool=issue_refund")
    cards = page.locator("[data-card]")
    cards.first.locator("input[name=call]").check()
    cards.last.locator("details.edit > summary").click()
    cards.last.get_by_label("Amount", exact=True).fill("80")
    page.get_by_role("button", name="Approve selected").click()
    expect(page.locator(".toast")).to_contain_text("Approved")
    expect(cards).to_have_count(1)
    expect(cards.get_by_label("Amount", exact=True)).to_have_value("80")
    cards.get_by_role("button", name="Approve edited").click()
    expect(page.get_by_text("Nothing needs attention.")).to_be_visible()
    assert Approval.objects.get(session__title="Claim 1").edited == {"claim": "CLM-1042", "amount": 80}
