"""In a real browser: a page of a running session that is told of news asks when there is some, and polls without."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any
from unittest.mock import AsyncMock

import pytest
from django.db import connections
from django.utils import timezone
from playwright.sync_api import Browser, BrowserContext, Page, expect

from sessions_app.models import Session
from sessions_app.watching import news, open_pages, streams
from tests import builders
from tests.asgi import Server, asgi_server
from tests.browsing import log_in

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def server(settings: Any, redis_url: str) -> Iterator[Server]:
    settings.REDIS_URL, settings.AGENTSTATE_MIRROR = redis_url, False
    settings.ALLOWED_HOSTS = ["127.0.0.1"]
    news._thread.cache_clear()
    with asgi_server() as server:
        yield server
    news._thread.cache_clear()
    connections.close_all()


@pytest.fixture
def context(browser: Browser, server: Server) -> Iterator[BrowserContext]:
    made = browser.new_context(base_url=server.url)
    yield made
    made.close()


class Requests:
    """What a page has asked for."""

    def __init__(self, page: Page) -> None:
        self._urls: list[str] = []
        page.on("request", lambda request: self._urls.append(request.url))

    def of(self, part: str) -> int:
        return sum(f"/{part}/?" in url for url in self._urls)


def without_timers(page: Page) -> None:
    """Count the seconds that pass for the page, instead of waiting for them."""
    page.clock.install()


def pass_seconds(page: Page, seconds: int) -> None:
    for _ in range(seconds):
        page.clock.run_for(1000)


def wait_until(page: Page, condition: Callable[[], bool]) -> None:
    """For what the page asks of the server, while time passes for it."""
    for _ in range(1200):
        if condition():
            return
        page.clock.run_for(20)
        page.wait_for_timeout(25)
    raise AssertionError("It did not come.")


def listening(context: BrowserContext, session: Session) -> tuple[Page, Requests]:
    """The page of the session has opened its stream, and asked once since."""
    page = log_in(context)
    asked = Requests(page)
    without_timers(page)
    page.goto(f"/sessions/{session.pk}/")
    wait_until(page, lambda: asked.of("news") == 1 and asked.of("live") == 1)
    return page, asked


@pytest.mark.parametrize("tab, place", [("", "#timeline"), ("conversation/", "#talk")])
def test_a_page_that_is_told_shows_a_step_without_polling_for_it(
    context: BrowserContext, tab: str, place: str
):
    history = builders.looked_up()
    session = history.rest("running")
    page = log_in(context)
    wrong: list[str] = []
    page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
    asked = Requests(page)
    without_timers(page)
    page.goto(f"/sessions/{session.pk}/{tab}")
    live = "live" if not tab else "conversation"
    # It asks once when the stream opens, and then only when it is told.
    wait_until(page, lambda: asked.of("news") == 1 and asked.of(live) == 1)
    pass_seconds(page, 5)
    assert asked.of(live) == 1
    history.session.refresh_from_db()
    history.reply("It is covered too.")
    history.end("It is covered too.")
    history.rest("running")
    wait_until(page, lambda: page.locator(place).get_by_text("It is covered too.").count() > 0)
    assert asked.of(live) <= 3
    pass_seconds(page, 12)
    assert asked.of(live) <= 5
    assert asked.of("news") == 1
    assert wrong == []


def test_a_tab_that_stays_as_it_was_loaded_is_told_that_there_is_something_newer(context: BrowserContext):
    history = builders.looked_up()
    session = history.rest("running")
    page = log_in(context)
    asked = Requests(page)
    without_timers(page)
    page.goto(f"/sessions/{session.pk}/state/")
    wait_until(page, lambda: asked.of("news") == 1 and asked.of("top") == 1)
    pass_seconds(page, 5)
    assert asked.of("top") == 1
    history.session.refresh_from_db()
    history.reply("It is covered too.")
    history.end("It is covered too.")
    wait_until(page, lambda: page.locator("#reload").count() > 0)
    assert page.locator("#session-head .pill").text_content() == "Done"
    assert asked.of("top") <= 3
    assert asked.of("news") == 1


def test_a_page_whose_stream_breaks_off_polls_at_once_and_listens_again_later(
    context: BrowserContext, redis_server: Any
):
    session = builders.running()
    page, asked = listening(context, session)
    redis_server.stop()
    wait_until(page, lambda: asked.of("live") >= 2)
    redis_server.start()
    before = asked.of("live")
    wait_until(page, lambda: asked.of("live") >= before + 3)
    assert asked.of("news") == 1
    pass_seconds(page, 61)
    wait_until(page, lambda: asked.of("news") >= 2)
    expect(page.locator("#connection")).to_be_hidden()


def test_a_hidden_page_does_not_listen(context: BrowserContext):
    session = builders.running()
    page, asked = listening(context, session)
    see = (
        "(hidden) => { Object.defineProperty(document, 'hidden', {value: hidden, configurable: true});"
        " document.dispatchEvent(new Event('visibilitychange')); }"
    )
    page.evaluate(see, True)
    pass_seconds(page, 30)
    assert (asked.of("news"), asked.of("live")) == (1, 1)
    page.evaluate(see, False)
    wait_until(page, lambda: asked.of("news") == 2 and asked.of("live") == 2)


def test_a_page_that_listens_hears_who_else_has_the_session_open_and_asks_itself_when_it_hears_nothing(
    context: BrowserContext, browser: Browser, server: Server, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(open_pages, "SAY_SECONDS", 0.2)
    session = builders.running()
    page, asked = listening(context, session)
    pass_seconds(page, 25)
    assert asked.of("also-open") == 0
    other = browser.new_context(base_url=server.url)
    log_in(other, "ada").goto(f"/sessions/{session.pk}/audit/")
    wait_until(page, lambda: page.locator(".also-open").text_content() == "Also open: ada")
    assert asked.of("also-open") == 1
    other.close()
    # A stream that is dead without the browser knowing brings no beats: the page polls, and listens again later.
    monkeypatch.setattr(streams.Streams, "look_after_all", AsyncMock())
    pass_seconds(page, 75)
    wait_until(page, lambda: asked.of("also-open") >= 2)
    pass_seconds(page, 45)
    wait_until(page, lambda: asked.of("news") == 2)


def test_a_page_that_listens_finds_what_it_was_not_told_of_and_that_the_worker_is_lost(
    context: BrowserContext, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(open_pages, "SAY_SECONDS", 0.2)
    history = builders.looked_up()
    session = history.rest("running")
    page, asked = listening(context, session)
    with monkeypatch.context() as untold:
        untold.setattr(news.NewsThread, "tell", lambda *_: None)
        history.session.refresh_from_db()
        history.lookup("POL-8")
    wait_until(page, lambda: page.locator("#timeline").get_by_text("POL-8").count() > 0)
    an_hour_ago = timezone.now() - timedelta(hours=1)
    Session.objects.filter(pk=session.pk).update(lease_expires_at=an_hour_ago)
    wait_until(page, lambda: page.get_by_text("Its worker is lost.").count() > 0)
    pass_seconds(page, 1)  # what it was told of meanwhile is asked for
    before = asked.of("live")
    pass_seconds(page, 5)
    assert asked.of("live") == before


def test_a_page_that_listens_asks_when_its_session_is_to_be_stuck_and_says_every_four_minutes_that_it_is_open(
    context: BrowserContext, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(open_pages, "SAY_SECONDS", 0.05)
    history = builders.looked_up()
    history.rest("queued")
    begun = timezone.now()
    session = history.save(next_run_at=begun + timedelta(seconds=250))
    page, asked = listening(context, session)
    opened_after = (timezone.now() - begun).total_seconds()
    asked_at, said_at, count, said = [], [], 1, 0
    opened_at = page.evaluate("Date.now()")
    second = 0.0
    while second < 344:
        page.clock.run_for(1000)
        page.wait_for_timeout(15)
        second = (page.evaluate("Date.now()") - opened_at) / 1000  # time also passes by itself
        asked_at += [second] * (asked.of("live") - count)
        said_at += [second] * (asked.of("also-open") - said)
        count, said = asked.of("live"), asked.of("also-open")
    # It is to be stuck after 310 seconds. The server's clock is not turned on, so the page is not drawn again.
    assert 310 <= asked_at[0] + opened_after <= 341
    assert len(said_at) == 1
    assert 238 <= said_at[0] <= 245


def test_a_page_that_listens_makes_up_for_a_question_that_failed_and_its_connection_is_not_lost_for_long(
    context: BrowserContext, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(open_pages, "SAY_SECONDS", 0.05)
    session = builders.running()
    page, asked = listening(context, session)
    page.route(
        "**/also-open/**", lambda route: route.abort() if asked.of("also-open") < 2 else route.continue_()
    )
    said_at, said, lost_for = [], 0, 0
    for second in range(1, 280):
        page.clock.run_for(1000)
        page.wait_for_timeout(15)
        said_at += [second] * (asked.of("also-open") - said)
        said = asked.of("also-open")
        lost_for += page.locator("#connection.error").is_visible()
    assert len(said_at) == 2
    assert said_at[1] - said_at[0] <= 21
    assert 0 < lost_for <= 21
    assert asked.of("news") == 1


def test_a_page_that_listens_and_whose_session_is_gone_says_so_and_neither_listens_nor_asks(
    context: BrowserContext, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(open_pages, "SAY_SECONDS", 0.2)
    session = builders.running()
    page, asked = listening(context, session)
    Session.objects.get(pk=session.pk).delete()
    gone = page.get_by_text("This session no longer exists, or you may no longer see it.")
    wait_until(page, lambda: gone.count() > 0)
    before = (asked.of("live"), asked.of("news"), asked.of("also-open"))
    pass_seconds(page, 90)
    assert (asked.of("live"), asked.of("news"), asked.of("also-open")) == before
