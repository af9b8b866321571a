"""In a real browser, with JavaScript and without: repair a tool's result; fork with other words, and compare."""

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, expect

from sessions_app.history import restore
from sessions_app.models import Approval, Session
from tests import builders
from tests.browsing import log_in

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]
BOTH = pytest.mark.parametrize("javascript", [True, False], ids=["with JavaScript", "without JavaScript"])


@pytest.fixture
def context(browser: Browser, live_server: Any, javascript: bool) -> Iterator[BrowserContext]:
    made = browser.new_context(base_url=live_server.url, java_script_enabled=javascript)
    made.set_default_timeout(10_000)
    yield made
    made.close()


def read_by_the_model(session: Session) -> list[str]:
    """The texts and results that the model sees when the session goes on."""
    session = Session.objects.select_related("branch").get(pk=session.pk)
    base = restore.read(builders.branch_of(session)).checkpoint
    assert base is not None
    parts = [part for message in base.context for part in message.body["content"]]
    return [str(part.get("text") or part.get("tool_call_result", {}).get("result") or "") for part in parts]


@BOTH
def test_repair_a_tools_result(context):
    session = builders.paused()
    page = log_in(context, "sue", "supervisor")
    page.goto(f"/sessions/{session.pk}/")
    page.get_by_role("link", name="correct its result").click()
    field = page.get_by_label("What the model reads instead")
    expect(field).to_have_value('{"policy": "POL-7", "status": "active"}')
    field.fill('{"policy": "POL-7", "status": "lapsed"}')
    page.get_by_label("Reason").fill("It lapsed yesterday")
    page.get_by_role("button", name="Save correction").click()
    expect(page.locator(".toast")).to_contain_text("Repaired")
    # What was, what is read now, and who says so stand on the page; and it can be undone.
    expect(page.locator(".replaced")).to_contain_text('"lapsed"')
    expect(page.locator(".replaced")).to_contain_text("sue")
    expect(page.locator(".call .result").first).to_contain_text("active")
    assert '{"policy": "POL-7", "status": "lapsed"}' in read_by_the_model(session)
    page.locator("header.session").get_by_role("button", name="Undo").click()
    page.get_by_label("Reason").fill("It has not lapsed")
    page.locator("form.dialog button.first").click()
    expect(page.locator(".replaced")).to_have_count(0)
    assert '{"policy": "POL-7", "status": "active"}' in read_by_the_model(session)
    page.context.close()


@BOTH
def test_fork_with_other_words_and_compare_with_the_source(context):
    session = builders.done()
    page = log_in(context, "sue", "supervisor")
    page.goto(f"/sessions/{session.pk}/")
    page.locator("header.session").get_by_role("button", name="Fork…").click()
    page.get_by_role("link", name="The last message, reworded").click()
    expect(page.get_by_label("New message")).to_have_value("Is my windscreen covered by POL-7?")
    page.get_by_label("New message").fill("Is my roof covered by POL-8?")
    page.get_by_label("Reason").fill("She meant the roof")
    page.get_by_role("button", name="Fork", exact=True).click()
    expect(page.locator("main h1")).to_contain_text("(fork)")
    expect(page.locator("#session-head .pill")).to_have_text("Queued")
    fork = Session.objects.exclude(pk=session.pk).get()
    assert read_by_the_model(fork)[1:] == ["Is my roof covered by POL-8?"]
    page.get_by_role("link", name="compare with the source").click()
    expect(page.locator("h1")).to_have_text("Compare")
    expect(page.locator("main")).to_contain_text("Is my roof covered by POL-8?")
    page.context.close()


@BOTH
def test_decide_calls_in_doubt_and_resume(context):
    history = builders.looked_up()
    history.reply(calls=[("send_letter", {"text": "A"}), ("issue_refund", {"claim": "C", "amount": 120})])
    for call in history.calls:
        history.doubt(call)
    session = history.rest("waiting", waiting_for="doubt", why="Nobody knows.")
    page = log_in(context)
    page.goto(f"/sessions/{session.pk}/")
    page.locator("header.session").get_by_role("button", name="Decide all 2 calls…").click()
    dialog = page.locator("form.dialog")
    expect(dialog).to_contain_text("What will happen")
    letter, refund = history.calls
    dialog.locator(f"[name=decision-{letter.pk}][value=again]").check()
    dialog.locator(f"[name=decision-{refund.pk}][value=result]").check()
    dialog.get_by_label("Result of issue_refund").fill("refunded 120 EUR")
    dialog.get_by_label("Reason").fill("Seen on the account")
    dialog.get_by_role("button", name="Decide all 2 calls and resume").click()
    expect(page.locator("#session-head .pill")).to_have_text("Queued")
    expect(page.locator("#timeline")).to_contain_text("refunded 120 EUR")
    page.context.close()


@BOTH
def test_approve_several_like_calls_at_once(context):
    for number in range(3):
        builders.waiting_for_approval(title=f"Refund {number}")
    page = log_in(context)
    page.goto("/inbox/")
    page.get_by_role("link", name="Similar requests").first.click()
    for number in (0, 2):
        page.get_by_label(f"Select Refund {number}").check()
    page.get_by_role("button", name="Approve selected").click()
    expect(page.locator(".toast")).to_have_text("Approved: Issue refund and 1 more")
    expect(page.locator(".item")).to_have_count(1)
    expect(page.locator(".item")).to_contain_text("Refund 1")
    assert set(Approval.objects.filter(decision="approved").values_list("session__title", flat=True)) == {
        "Refund 0",
        "Refund 2",
    }
    page.context.close()
