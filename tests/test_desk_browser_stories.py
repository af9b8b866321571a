"""Whole stories of staff in a browser: by touch, by keyboard alone, by evidence, and of many sessions at once."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone
from playwright.sync_api import Browser, BrowserContext, expect

from sessions_app.actions import bulk
from sessions_app.models import Approval, BulkAction, Session, ToolCall, Worker
from tests import builders
from tests.browsing import log_in

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("nothing_runs"),
]


@pytest.fixture
def context(browser: Browser, live_server: Any) -> Iterator[BrowserContext]:
    made = browser.new_context(base_url=live_server.url, viewport={"width": 1280, "height": 900})
    yield made
    made.close()


def test_a_refund_is_approved_with_another_amount_on_a_phone(browser, live_server):
    builders.waiting_for_approval(title="Claim 1")
    phone = browser.new_context(
        base_url=live_server.url, viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True
    )
    page = log_in(phone)
    page.goto("/")
    card = page.locator(".item")
    expect(card).to_contain_text("Is my windscreen covered by POL-7?")
    card.locator("details.edit > summary").tap()
    card.get_by_label("Amount", exact=True).fill("80")
    card.get_by_role("button", name="Approve edited").tap()
    expect(page.locator(".toast")).to_contain_text("Claim 1 · Issue refund · Approved.")
    expect(page.locator(".toast")).to_be_in_viewport()
    expect(page.get_by_text("Nothing needs attention.")).to_be_visible()
    assert Approval.objects.get().edited == {"claim": "CLM-1042", "amount": 80}
    phone.close()


def test_a_refund_is_approved_by_keyboard_alone_from_the_login_on(context):
    builders.user("operator", "anna")
    builders.waiting_for_approval(title="Claim 1")
    page = context.new_page()
    page.goto("/")
    expect(page.get_by_label("Name")).to_be_focused()
    page.keyboard.type("anna")
    page.keyboard.press("Tab")
    page.keyboard.type("correct horse")
    page.keyboard.press("Enter")
    card = page.locator("[data-card]")
    expect(card).to_be_visible()
    page.keyboard.press("j")
    expect(card).to_be_focused()
    page.keyboard.press("a")
    expect(card.get_by_role("button", name="Approve")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator(".toast")).to_contain_text("Claim 1 · Issue refund · Approved.")
    approval = Approval.objects.get()
    assert (approval.decision, approval.decided_by) == ("approved", "anna")


def test_a_call_in_doubt_is_decided_by_what_is_known_of_it(context):
    earlier = builders.refunding(title="Earlier")
    earlier.finish(earlier.calls[-1], "Refunded 50 EUR, reference RF-6")
    earlier.rest("paused")
    session = builders.in_doubt(title="Claim 2")
    call = ToolCall.objects.get(branch=session.branch, status="doubt")
    ToolCall.objects.filter(pk=call.pk).update(worker="host:1")
    Worker.objects.create(name="host:1", beat_at=timezone.now() - timedelta(hours=1))
    page = log_in(context)
    page.goto("/")
    card = page.locator(".item.doubt")
    for known in ("moves money", "on host:1", "is offline", call.idempotency_key, "CLM-1042", "120"):
        expect(card).to_contain_text(known)
    card.get_by_role("button", name="It took effect…").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Refunded 50 EUR, reference RF-6")
    dialog.get_by_label("Result", exact=True).fill("Refunded 120 EUR, reference RF-7")
    dialog.get_by_label("Reason").fill("Seen on the account")
    dialog.get_by_role("button", name="Record result").click()
    expect(page.locator(".toast")).to_contain_text("Claim 2 · Issue refund · Decided.")
    call.refresh_from_db()
    assert (call.status, call.result, call.decided_by) == ("done", "Refunded 120 EUR, reference RF-7", "anna")
    assert Session.objects.get(pk=session.pk).status == "queued"


def test_ten_sessions_that_failed_alike_are_one_line_and_run_again_together(context):
    for number in range(10):
        builders.failed(title=f"Claim {number}", created_at=timezone.now() - timedelta(minutes=20 - number))
    page = log_in(context)
    page.goto("/")
    expect(page.locator(".item")).to_have_count(1)
    expect(page.locator(".item")).to_contain_text("10 sessions")
    page.get_by_role("link", name="Try all 10 again").click()
    page.get_by_label("Reason").fill("The provider is back")
    page.get_by_role("button", name="Resume (10)").click()
    expect(page.get_by_role("heading", name="Bulk action: resume")).to_be_visible()
    while bulk.run_batch(BulkAction.objects.get().pk):
        pass
    expect(page.locator("#progress")).to_contain_text("Finished: 10 done, 0 refused, of 10.")
    assert Session.objects.filter(status="queued").count() == 10
    page.goto("/inbox/")
    expect(page.get_by_text("Nothing needs attention.")).to_be_visible()
