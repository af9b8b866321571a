"""In a real browser: pages that follow an answer, tell of new steps, and say when the connection is lost."""

import pytest
from playwright.sync_api import Page, expect

from tests import builders
from tests.test_desk_browser import context, page  # noqa: F401

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.django_db(transaction=True)]


@pytest.fixture(autouse=True)
def _nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentstate.celery.app.send_task", lambda *args: None)


def poll(watched: Page) -> None:
    """Ask for what is new at once."""
    watched.evaluate(
        "const live = document.querySelector('[data-live]');"
        "live.setAttribute('hx-trigger', 'now'); htmx.process(live); htmx.trigger(live, 'now')"
    )


def test_after_send_the_page_shows_where_the_answer_will_be_and_follows_it(page):  # noqa: F811
    history = builders.looked_up()
    for number in range(12):
        history.lookup(f"POL-{number}")
    history.reply("Yes.")
    history.end("Yes.")
    session = history.rest("idle")
    page.goto(f"/sessions/{session.pk}/")
    page.get_by_label("Message to the agent").fill("And my wing mirror?")
    page.get_by_role("button", name="Send").click()
    expect(page.locator("#inbox")).to_contain_text("And my wing mirror?")
    expect(page.locator("#inbox")).to_be_in_viewport()
    assert page.evaluate("window.scrollY") > 500


def test_a_message_sent_from_the_conversation_stays_there_and_the_answer_appears(page):  # noqa: F811
    history = builders.looked_up()
    session = history.rest("running")
    page.goto(f"/sessions/{session.pk}/conversation/")
    page.get_by_label("Message to the agent").fill("And my wing mirror?")
    page.get_by_role("button", name="Send").click()
    expect(page).to_have_url(f"/sessions/{session.pk}/conversation/#inbox")
    expect(page.locator("#talk")).to_contain_text("And my wing mirror?")
    history.session.refresh_from_db()
    history.reply("It is covered too.")
    history.end("It is covered too.")
    expect(page.locator("#talk")).to_contain_text("It is covered too.")
    expect(page.locator("#session-head .pill")).to_have_text("Done")


def test_new_steps_below_is_said_only_where_a_step_came(page):  # noqa: F811
    history = builders.looked_up()
    for number in range(12):
        history.lookup(f"POL-{number}")
    session = history.rest("waiting", waiting_for="approval")
    page.goto(f"/sessions/{session.pk}/")
    history.event("noted", reason="Something else happened")
    poll(page)
    expect(page.locator("#side")).to_contain_text("Something else happened")
    expect(page.locator("#fresh")).to_be_hidden()
    history.lookup("POL-99")
    history.rest("waiting", waiting_for="approval")
    poll(page)
    expect(page.get_by_role("button", name="New steps below")).to_be_visible()


def test_a_bar_says_that_the_connection_is_lost_and_when_it_is_back(browser, live_server):
    from tests.test_desk_browser import log_in

    session = builders.running()
    made = browser.new_context(base_url=live_server.url)
    watching = log_in(made)
    watching.goto(f"/sessions/{session.pk}/")
    made.set_offline(True)
    expect(watching.get_by_role("status").filter(has_text="Connection lost.")).to_be_visible()
    made.set_offline(False)
    expect(watching.get_by_role("status").filter(has_text="Connected again.")).to_be_visible()
    expect(watching.locator("#connection")).to_be_hidden()
    made.close()
