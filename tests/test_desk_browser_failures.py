"""In a real browser: an action that gets no answer, or an error, says so, and whether it may have been carried out; and
where the login has ended, what was typed is kept.
"""

import re

import pytest
from django.conf import settings
from playwright.sync_api import BrowserContext, Locator, Page, Route, expect

from sessions_app.models import Event, InboxMessage, Session
from tests import builders
from tests.browsing import log_in, log_in_by_the_form
from tests.test_desk_browser import context  # noqa: F401

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.django_db(transaction=True)]

MAY_BE_DONE = "What you sent may have been carried out: check before you send it again."
OWN_PAGE = "<!doctype html><main><h1>Something went wrong</h1>\n<p>Check the session.</p></main>"


@pytest.fixture
def tab(context: BrowserContext) -> Page:  # noqa: F811
    """Whatever is written to the console: these tests make requests fail."""
    return log_in(context)


def failing(tab: Page, address: str, status: int, body: str = "") -> None:
    tab.route(
        re.compile(address), lambda route: route.fulfill(status=status, body=body, content_type="text/html")
    )


@pytest.mark.parametrize(
    "status, body, text",
    [
        (500, OWN_PAGE, "Something went wrong. Check the session."),
        (502, "<h1>Bad Gateway</h1>", f"The server answered with error 502. {MAY_BE_DONE}"),
        (0, "", f"No answer came from the server. {MAY_BE_DONE}"),
    ],
)
def test_an_approval_that_fails_says_whether_it_may_have_been_carried_out(tab, status, body, text):
    builders.waiting_for_approval()
    tab.goto("/inbox/")
    if status:
        failing(tab, "/approve/", status, body)
    else:
        tab.route(re.compile("/approve/"), lambda route: route.abort())
    tab.get_by_role("button", name="Approve").click()
    toast = tab.get_by_role("status").filter(has_text=text)
    expect(toast).to_be_visible()
    expect(toast.get_by_role("link", name="Open this page as it is now")).to_have_attribute("href", tab.url)
    # It goes with the next attempt.
    tab.unroute_all()
    tab.get_by_role("button", name="Approve").click()
    expect(tab.locator(".toast")).to_have_text(re.compile("Approved"))


def test_it_says_so_where_the_list_was_drawn_anew_meanwhile(tab):
    builders.waiting_for_approval()
    tab.goto("/inbox/")
    held: list[Route] = []

    def hold(route: Route) -> None:
        held.append(route)

    tab.route(re.compile("/approve/"), hold)
    tab.get_by_role("button", name="Approve").click()
    builders.waiting_for_approval(title="Second")
    expect(tab.locator(".item")).to_have_count(2, timeout=20_000)
    held[0].fulfill(status=500, body=OWN_PAGE, content_type="text/html")
    expect(tab.get_by_role("status").filter(has_text="Something went wrong.")).to_be_visible()


def test_a_form_that_the_server_no_longer_takes_changes_nothing_and_says_so(tab):
    session = builders.waiting_for_approval()
    tab.goto("/inbox/")
    tab.context.clear_cookies(name="csrftoken")
    events = Event.objects.filter(session=session).count()
    tab.get_by_role("button", name="Approve").click()
    expect(tab.get_by_role("status").filter(has_text="Nothing was changed.")).to_contain_text(
        "reload the page"
    )
    assert Event.objects.filter(session=session).count() == events


def test_a_dialog_that_does_not_open_says_so(tab):
    tab.goto(f"/sessions/{builders.done().pk}/")
    tab.context.set_offline(True)
    tab.get_by_role("button", name="Rewind…").click()
    text = "No answer came from the server. Nothing was changed. Try again."
    expect(tab.get_by_role("status").filter(has_text=text)).to_be_visible()
    tab.context.set_offline(False)
    tab.get_by_role("button", name="Rewind…").click()
    expect(tab.get_by_role("dialog")).to_be_visible()
    expect(tab.get_by_text(text)).to_have_count(0)


def resuming(tab: Page) -> tuple[Session, Locator]:
    """A paused session, and the dialog that resumes it, with a reason typed in."""
    session = builders.paused()
    tab.goto(f"/sessions/{session.pk}/")
    tab.get_by_role("button", name="Resume…").click()
    dialog = tab.get_by_role("dialog")
    dialog.get_by_label("Reason").fill("Lunch is over")
    return session, dialog


def test_a_dialog_that_cannot_be_sent_stays_open_with_what_was_typed_and_says_so(tab):
    _, dialog = resuming(tab)
    tab.context.set_offline(True)
    dialog.get_by_role("button", name="Resume").click()
    said = dialog.get_by_role("alert")
    expect(said).to_contain_text(f"No answer came from the server. {MAY_BE_DONE}")
    expect(said).to_be_in_viewport()
    expect(dialog.get_by_label("Reason")).to_have_value("Lunch is over")
    tab.context.set_offline(False)
    dialog.get_by_role("button", name="Resume").click()
    expect(tab.locator(".toast")).to_contain_text("Resumed.")


def test_a_poll_that_fails_is_told_of_in_its_own_line_only(tab):
    tab.goto(f"/sessions/{builders.running().pk}/")
    tab.context.set_offline(True)
    expect(tab.get_by_role("status").filter(has_text="Connection lost.")).to_be_visible()
    expect(tab.locator("#failure")).to_have_count(0)


def end_login(tab: Page) -> None:
    tab.context.clear_cookies(name=settings.SESSION_COOKIE_NAME)


def log_in_in_another_tab(tab: Page, link: Locator) -> None:
    with tab.context.expect_page() as opened:
        link.click()
    other = opened.value
    other.get_by_label("Name").fill("anna")
    other.get_by_label("Password").fill("correct horse")
    other.get_by_role("button", name="Log in").click()
    expect(other).to_have_url(tab.url)
    other.close()


def test_a_reason_is_kept_where_the_login_has_ended_and_is_sent_after_another_login(tab):
    session, dialog = resuming(tab)
    end_login(tab)
    dialog.get_by_role("button", name="Resume").click()
    said = dialog.get_by_role("alert")
    expect(said).to_contain_text("Nothing was sent: your login has ended.")
    log_in_in_another_tab(tab, said.get_by_role("link", name="Log in in a new tab"))
    expect(dialog.get_by_label("Reason")).to_have_value("Lunch is over")
    dialog.get_by_role("button", name="Resume").click()
    expect(tab.locator(".toast")).to_contain_text("Resumed.")
    assert Event.objects.filter(session=session, reason="Lunch is over").count() == 1


def test_a_message_is_kept_where_the_login_has_ended_and_is_sent_once_after_another_login(tab):
    session = builders.done()
    tab.goto(f"/sessions/{session.pk}/")
    message = tab.get_by_label("Message to the agent")
    message.fill("And my wing mirror?")
    end_login(tab)
    tab.get_by_role("button", name="Send").click()
    said = tab.get_by_role("status").filter(has_text="Nothing was sent: your login has ended.")
    expect(said).to_be_visible()
    expect(message).to_have_value("And my wing mirror?")
    log_in_in_another_tab(tab, said.get_by_role("link", name="Log in in a new tab"))
    tab.get_by_role("button", name="Send").click()
    expect(tab.locator("#inbox")).to_contain_text("And my wing mirror?")
    expect(message).to_have_value("")
    assert InboxMessage.objects.filter(session=session).count() == 1


def test_a_form_with_a_page_of_its_own_is_not_left_without_a_network_or_a_login(tab):
    builders.agent()
    tab.goto("/start/")
    message = tab.get_by_label("Message", exact=True)
    message.fill("Is my roof covered?")
    start = tab.get_by_role("button", name="Start", exact=True)
    tab.context.set_offline(True)
    start.click()
    text = "No answer came from the server. Nothing was changed. Try again."
    expect(tab.get_by_role("status").filter(has_text=text)).to_be_visible()
    tab.context.set_offline(False)
    end_login(tab)
    start.click()
    said = tab.get_by_role("status").filter(has_text="Nothing was sent: your login has ended.")
    expect(said).to_be_visible()
    log_in_in_another_tab(tab, said.get_by_role("link", name="Log in in a new tab"))
    expect(message).to_have_value("Is my roof covered?")
    start.click()
    expect(tab.locator(".toast")).to_contain_text("Started.")


def test_a_poll_does_not_leave_the_page_while_something_is_typed(tab):
    session = builders.running()
    tab.goto(f"/sessions/{session.pk}/")
    message = tab.get_by_label("Message to the agent")
    message.fill("And my wing mirror?")
    end_login(tab)
    said = tab.get_by_role("status").filter(has_text="Your login has ended")
    expect(said).to_be_visible()
    log_in_in_another_tab(tab, said.get_by_role("link", name="Log in in a new tab"))
    expect(tab.get_by_role("status").filter(has_text="Reconnected.")).to_be_visible()
    expect(message).to_have_value("And my wing mirror?")
    # Without it, the page leads to the login, as a link does.
    message.fill("")
    message.blur()
    end_login(tab)
    expect(tab).to_have_url(re.compile(r"/login/[?]next=/sessions/"))


def test_a_page_of_another_user_decides_nothing(tab):
    session = builders.waiting_for_approval()
    tab.goto("/inbox/")
    end_login(tab)
    builders.user("operator", "ben")
    log_in_by_the_form(tab.context, "ben")
    events = Event.objects.filter(session=session).count()
    tab.get_by_role("button", name="Approve").click()
    said = tab.get_by_role("status").filter(has_text="Nothing was changed. You are logged in as ben now")
    expect(said).to_be_visible()
    assert Event.objects.filter(session=session).count() == events


def test_without_javascript_the_form_of_the_login_says_that_nothing_was_sent(browser, live_server):
    made = browser.new_context(base_url=live_server.url, java_script_enabled=False)
    tab = log_in(made)
    tab.goto(f"/sessions/{builders.done().pk}/")
    tab.get_by_label("Message to the agent").fill("And my wing mirror?")
    end_login(tab)
    tab.get_by_role("button", name="Send").click()
    expect(tab.get_by_role("alert")).to_contain_text("Nothing was sent: your login had ended.")
    made.close()
