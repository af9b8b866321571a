"""How many clicks the stories of staff take in a browser, from the inbox or the list of sessions.

Keys are no clicks. But a field into which somebody types has to have the focus, or be the next one or the one after
that: otherwise they click on it, and that is counted.
"""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone
from playwright.sync_api import Browser, Page, expect

from sessions_app.actions import bulk
from sessions_app.models import Approval, BulkAction, Session, ToolCall
from tests import builders
from tests.browsing import log_in

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.django_db(transaction=True)]

# A press of the pointer is counted wherever it falls, on whatever page.
COUNT = "document.addEventListener('pointerdown', (event) => event.isTrusted && counted(), true)"


class Story:
    """A page and the clicks on it. Everything but `begin_at` is done by clicks and typing."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.clicks = 0
        page.context.expose_function("counted", self._count)
        page.add_init_script(COUNT)

    def _count(self) -> None:
        self.clicks += 1

    def begin_at(self, address: str) -> None:
        self.page.goto(address)
        self.clicks = 0

    def press(self, role: Any, name: str, *, within: str = "body") -> None:
        self.page.locator(within).get_by_role(role, name=name, exact=True).first.click()

    def type(self, label: str, text: str) -> None:
        field = self.page.get_by_label(label, exact=True)
        expect(field).to_be_visible()
        for _ in range(3):
            if field.evaluate("field => field === document.activeElement"):
                break
            self.page.keyboard.press("Tab")
        else:
            field.click()
        self.page.keyboard.press("ControlOrMeta+A")
        self.page.keyboard.type(text)


@pytest.fixture
def story(browser: Browser, live_server: Any, nothing_runs: None) -> Iterator[Story]:
    """A supervisor's browser. No worker runs: the sessions stay as the story leaves them."""
    context = browser.new_context(base_url=live_server.url, viewport={"width": 1280, "height": 900})
    builders.user("supervisor", "sue")
    yield Story(log_in(context, "sue"))
    context.close()


def test_find_understand_and_resume_a_stuck_session_takes_three_clicks(story):
    builders.done(title="Fine")
    session = builders.retries_used_up(title="Stuck")
    story.begin_at("/inbox/")
    story.press("link", "Stuck")
    expect(story.page.locator("#banner")).to_contain_text("Gave up retrying.")
    story.press("button", "Resume…")
    story.type("Reason", "The provider is back")
    story.press("button", "Resume", within="dialog")
    expect(story.page.locator("#session-head .pill")).to_have_text("Queued")
    assert Session.objects.get(pk=session.pk).status == "queued"
    assert story.clicks == 3


def test_approving_a_call_with_an_edit_takes_two_clicks(story):
    builders.waiting_for_approval()
    story.begin_at("/inbox/")
    story.page.locator("details.edit > summary").click()
    story.type("Amount", "80")
    story.press("button", "Approve edited")
    expect(story.page.locator(".toast")).to_contain_text("Approved.")
    assert Approval.objects.get().edited == {"claim": "CLM-1042", "amount": 80}
    assert story.clicks == 2


def test_rejecting_a_call_takes_two_clicks(story):
    builders.waiting_for_approval()
    story.begin_at("/inbox/")
    story.press("button", "Reject…")
    story.type("Message to the agent", "Not before the report is here")
    story.press("button", "Reject", within="dialog")
    expect(story.page.locator(".toast")).to_contain_text("Rejected.")
    assert Approval.objects.get().decision == "rejected"
    assert story.clicks == 2


def test_deciding_a_call_in_doubt_takes_three_clicks_with_a_look_at_its_session(story):
    builders.in_doubt(title="Letter")
    story.begin_at("/inbox/")
    story.press("link", "Letter")
    expect(story.page.locator("#timeline .ask.doubt")).to_contain_text("may or may not have taken effect")
    story.press("button", "It took effect…")
    story.type("Result", "Paid, RF-7")
    story.type("Reason", "Seen on the account")
    story.press("button", "Record result", within="dialog")
    expect(story.page.locator(".toast")).to_contain_text("Decided.")
    assert ToolCall.objects.get(tool="issue_refund").result == "Paid, RF-7"
    assert story.clicks == 3


def test_rewind_correct_run_on_compare_and_undo_takes_six_clicks_from_the_list(story):
    session = builders.done(title="Windscreen")
    story.begin_at("/?queue=all")
    story.press("link", "Windscreen")
    story.press("link", "correct its result")
    story.type("What the model reads instead", '{"policy": "POL-7", "status": "lapsed"}')
    story.type("Reason", "It lapsed yesterday")
    story.press("button", "Save, rewind and resume", within="dialog")
    expect(story.page.locator("#session-head .pill")).to_have_text("Queued")
    story.press("link", "Compare", within=".toast")
    expect(story.page.locator("tr.removed, tr.changed").first).to_contain_text("active")
    story.press("button", "Undo…")
    story.type("Reason", "It has not lapsed")
    story.press("button", "Undo the repair", within="dialog")
    expect(story.page.locator("#session-head .pill")).to_have_text("Done")
    assert Session.objects.get(pk=session.pk).final_answer == "Yes, POL-7 covers your windscreen."
    assert story.clicks == 6


def test_pausing_many_sessions_takes_four_clicks_and_resuming_them_two(story):
    for number in range(3):
        builders.asked(title=f"Roof {number}", created_at=timezone.now() - timedelta(minutes=9)).rest(
            "queued"
        )
    builders.done()
    story.begin_at("/inbox/")
    story.page.get_by_role("navigation", name="Main").get_by_role("link", name="Sessions").click()
    story.page.get_by_role("navigation", name="Queues").get_by_role("link", name="Running").click()
    story.press("link", "Bulk actions on all of these…")
    story.type("Reason", "The provider is down")
    story.press("button", "Pause (3)")
    _work_off(story, "pause")
    expect(story.page.locator("#progress")).to_contain_text("Finished: 3 done")
    assert Session.objects.filter(status="paused").count() == 3
    assert story.clicks == 4
    story.press("link", "Resume these 3…")
    story.type("Reason", "It is back")
    story.press("button", "Resume (3)")
    _work_off(story, "resume")
    expect(story.page.locator("#progress")).to_contain_text("Finished: 3 done")
    assert Session.objects.filter(status="queued").count() == 3
    assert story.clicks == 4 + 2


def _work_off(story: Story, kind: str) -> None:
    """Do what a worker does for the bulk action, once its page is open."""
    expect(story.page.get_by_role("heading", name=f"Bulk action: {kind}")).to_be_visible()
    started = BulkAction.objects.get(kind=kind)
    while bulk.run_batch(started.pk):
        pass
