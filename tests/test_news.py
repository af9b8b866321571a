"""A page hears that there is news of its session: soon, from whichever process, and no more than that."""

import asyncio
import gc
import re
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from math import inf
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID, uuid4

import pytest
from asgiref.testing import ApplicationCommunicator
from django.contrib.auth.models import Group, User
from django.db import InterfaceError, OperationalError, connection, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper as DatabaseWrapper
from django.test import AsyncRequestFactory, Client, RequestFactory
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from agentstate.asgi import Handler
from sessions_app.checks import descriptors_suffice
from sessions_app.desk.views.news import is_offered
from sessions_app.mirror.live import session_changed
from sessions_app.models import Session
from sessions_app.watching import news, open_pages, standing, streams
from sessions_app.watching.buffer import buffer
from sessions_app.watching.news import NewsThread
from sessions_app.watching.standing import Page, Standing
from sessions_app.watching.streams import MOST_OF_LOGIN, NEWS, OPEN, Pace, Place, Streams
from tests import builders
from tests.asgi import cookie_of, whole_answer
from tests.driving import Desk
from tests.slow_models import SlowModel, talking
from tools import services

BATCHES = asyncio.Queue[Iterable[str] | None]


def yes() -> bool:
    return True


def as_now(pages: Collection[Page]) -> dict[Page, Standing]:
    return {page: Standing(1, False, "") for page in pages}


BEAT = b"data: beat 1  \n\n"


# When a page is told


def test_a_page_is_told_at_once_and_then_at_most_so_often():
    pace = Pace(now=100.0)
    assert pace.next(100.0) == inf
    pace.hear(streams.SPACING_SECONDS)
    assert pace.next(101.0) == 0
    for _ in range(50):
        pace.hear(streams.SPACING_SECONDS)
    assert pace.next(101.1) == pytest.approx(streams.SPACING_SECONDS - 0.1)
    assert pace.next(101.0 + streams.SPACING_SECONDS) == 0
    assert pace.next(102.0) == inf


def test_more_of_a_reply_can_wait_and_a_commit_behind_it_cannot():
    pace = Pace(now=100.0)
    pace.hear(streams.REPLY_SPACING_SECONDS)
    assert pace.next(100.0) == 0
    pace.hear(streams.REPLY_SPACING_SECONDS)
    assert pace.next(100.5) == pytest.approx(0.5)
    pace.hear(streams.SPACING_SECONDS)
    pace.hear(streams.REPLY_SPACING_SECONDS)
    assert pace.next(100.5) == 0


# One subscription for all pages


class Subscription:
    """One that the test feeds; None breaks it."""

    def __init__(self) -> None:
        self.batches: BATCHES = asyncio.Queue()
        self.begun = 0

    @asynccontextmanager
    async def __call__(self) -> AsyncIterator[AsyncIterator[Iterable[str]]]:
        self.begun += 1
        yield self._read()

    async def _read(self) -> AsyncIterator[Iterable[str]]:
        while (batch := await self.batches.get()) is not None:
            yield batch
        raise ConnectionError("the server is away")


def place_of(listeners: Streams, login: str = "a") -> Place:
    place = listeners.take_place(login)
    assert place is not None
    return place


async def opened(
    listeners: Streams, session_id: UUID, login: str = "a", may: Callable[[], bool] = yes
) -> AsyncIterator[bytes]:
    stream = listeners.stream(session_id, place_of(listeners, login), 1, may)
    assert await anext(stream) == OPEN
    return stream


async def close(*opened: Any) -> None:
    for stream in opened:
        await stream.aclose()


def test_pages_share_one_subscription_and_each_hears_of_its_own_session_only():
    async def scenario() -> None:
        subscription, mine, other = Subscription(), uuid4(), uuid4()
        listeners = Streams(subscription, most=9)
        assert await listeners.is_subscribed()
        first, second, third = [await opened(listeners, session) for session in (mine, mine, other)]
        assert await listeners.is_subscribed()
        assert subscription.begun == 1
        waiting = asyncio.ensure_future(anext(third))
        await subscription.batches.put(["no session", str(mine), ""])
        assert [await anext(first), await anext(second)] == [NEWS, NEWS]
        assert not waiting.done()
        await subscription.batches.put([f"{news.REPLY}{other}"])
        assert await waiting == NEWS
        await close(first, second, third)

    asyncio.run(scenario())


def test_a_page_that_does_not_read_takes_no_more_room_and_hears_once():
    async def scenario() -> None:
        session = uuid4()
        listeners = Streams(Subscription(), most=9, standings=as_now)
        assert await listeners.is_subscribed()
        slow = await opened(listeners, session)
        for _ in range(1000):
            listeners.tell([str(session)])
            await listeners.look_after_all()
        assert [await anext(slow), await anext(slow)] == [BEAT, NEWS]
        waiting = asyncio.ensure_future(anext(slow))
        await listeners.look_after_all()
        assert await waiting == BEAT
        await close(slow)

    asyncio.run(scenario())


def test_a_page_that_closes_is_forgotten_and_makes_room():
    async def scenario() -> None:
        listeners = Streams(Subscription(), most=MOST_OF_LOGIN + 1)
        assert await listeners.is_subscribed()
        of_one = [await opened(listeners, uuid4(), "one") for _ in range(MOST_OF_LOGIN)]
        assert listeners.take_place("one") is None
        of_two = await opened(listeners, uuid4(), "two")
        assert listeners.take_place("three") is None
        await close(of_two)
        assert listeners.has_room("three")
        assert listeners.take_place("one") is None
        await close(*of_one)
        assert len(listeners) == 0
        assert listeners._pages == {}

    asyncio.run(scenario())


def test_a_place_is_taken_before_its_stream_begins_and_left_once():
    async def scenario() -> None:
        listeners = Streams(Subscription(), most=9)
        assert await listeners.is_subscribed()
        places = [place_of(listeners, "one") for _ in range(MOST_OF_LOGIN)]
        assert listeners.take_place("one") is None
        places[0].leave()
        places[0].leave()
        assert len(listeners) == MOST_OF_LOGIN - 1
        for place in places:
            place.leave()
        assert listeners._logins == {}

    asyncio.run(scenario())


def test_all_streams_end_with_the_subscription_which_is_tried_again_later():
    async def scenario() -> None:
        now = 0.0
        subscription = Subscription()
        listeners = Streams(subscription, most=9, clock=lambda: now)
        assert await listeners.is_subscribed()
        pages = [await opened(listeners, uuid4()) for _ in range(3)]
        await subscription.batches.put(None)
        for page in pages:
            with pytest.raises(StopAsyncIteration):
                await anext(page)
        assert len(listeners) == 0
        assert not await listeners.is_subscribed()
        assert [part async for part in listeners.stream(uuid4(), place_of(listeners), 1, yes)] == []
        assert len(listeners) == 0
        now = streams.AGAIN_SECONDS
        assert await listeners.is_subscribed()
        assert subscription.begun == 2

    asyncio.run(scenario())


def test_a_stream_ends_once_its_login_has():
    async def scenario() -> None:
        now, answers = 0.0, [True, False]
        listeners = Streams(Subscription(), most=9, standings=as_now, clock=lambda: now)
        assert await listeners.is_subscribed()
        page, other = (
            await opened(listeners, uuid4(), may=lambda: answers.pop(0)),
            await opened(listeners, uuid4()),
        )
        for then in (0.0, streams.CHECK_SECONDS, 2 * streams.CHECK_SECONDS - 0.1):
            now = then
            await listeners.look_after_all()
            assert await anext(page) == BEAT
            assert await anext(other) == BEAT
        assert answers == [False]
        now = 2 * streams.CHECK_SECONDS
        await listeners.look_after_all()
        with pytest.raises(StopAsyncIteration):
            await anext(page)
        assert await anext(other) == BEAT
        await close(other)

    asyncio.run(scenario())


def test_while_logins_cannot_be_checked_all_streams_go_on_and_are_checked_once_they_can() -> None:
    async def scenario() -> None:
        now, asked = 0.0, 0
        is_away = True

        def may() -> bool:
            nonlocal asked
            asked += 1
            if is_away:
                raise InterfaceError("closed")
            return asked != 3

        listeners = Streams(Subscription(), most=9, standings=as_now, clock=lambda: now)
        assert await listeners.is_subscribed()
        pages = [await opened(listeners, uuid4(), may=may) for _ in range(3)]
        now = streams.CHECK_SECONDS
        await listeners.look_after_all()
        assert asked == 1
        assert [await anext(page) for page in pages] == [BEAT] * 3
        is_away = False
        await listeners.look_after_all()
        assert asked == 3
        ended = [await anext(page, None) is None for page in pages]
        assert sorted(ended) == [False, False, True]
        await close(*pages)

    asyncio.run(scenario())


def test_checks_that_take_long_hold_up_no_keep_alive_and_each_page_gets_its_turn() -> None:
    async def scenario() -> None:
        now = 0.0
        checked: list[int] = []

        def slowly(number: int) -> bool:
            nonlocal now
            checked.append(number)
            now += streams.CHECKING_SECONDS / 2
            return True

        listeners = Streams(Subscription(), most=9, standings=as_now, clock=lambda: now)
        assert await listeners.is_subscribed()
        pages = [
            await opened(listeners, uuid4(), str(number), partial(slowly, number)) for number in range(5)
        ]
        now = streams.CHECK_SECONDS
        for so_far in (2, 4, 5):
            await listeners.look_after_all()
            assert [await anext(page) for page in pages] == [BEAT] * 5
            assert len(checked) == so_far
        assert sorted(checked) == [0, 1, 2, 3, 4]
        await close(*pages)

    asyncio.run(scenario())


def test_a_page_whose_check_fails_polls_again_and_the_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    def fails() -> bool:
        raise LookupError("a mistake in a backend")

    async def scenario() -> None:
        now = 0.0
        listeners = Streams(Subscription(), most=9, standings=as_now, clock=lambda: now)
        assert await listeners.is_subscribed()
        broken, other = await opened(listeners, uuid4(), may=fails), await opened(listeners, uuid4())
        now = streams.CHECK_SECONDS
        await listeners.look_after_all()
        assert await anext(broken, None) is None
        assert await anext(other) == BEAT
        await close(other)

    asyncio.run(scenario())
    assert "a mistake in a backend" in caplog.text


def test_a_page_that_is_closed_is_held_by_nothing_until_its_time_is_over() -> None:
    class May:
        def __call__(self) -> bool:
            return True

    async def scenario() -> None:
        listeners = Streams(Subscription(), most=9)
        assert await listeners.is_subscribed()
        may = May()
        page = await opened(listeners, uuid4(), may=may)
        await close(page)
        held = weakref.ref(may)
        del may, page
        gc.collect()
        assert held() is None

    asyncio.run(scenario())


def test_a_stream_ends_after_its_time_so_that_its_page_asks_and_listens_again(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(streams, "LIFE_SECONDS", 0.05)

    async def scenario() -> None:
        listeners = Streams(Subscription(), most=9)
        assert await listeners.is_subscribed()
        page = await opened(listeners, uuid4())
        with pytest.raises(StopAsyncIteration):
            await asyncio.wait_for(anext(page), 30)
        assert len(listeners) == 0

    asyncio.run(scenario())


def test_each_page_that_listens_hears_how_its_session_stands_round_by_round():
    async def scenario() -> None:
        first, second = uuid4(), uuid4()
        stand = {(first, 1): Standing(7, False, "2-10"), (second, 1): Standing(None, False, "")}
        asked: list[set[Page]] = []

        def standings(pages: Collection[Page]) -> dict[Page, Standing]:
            asked.append({*pages})
            return {page: stand[page] for page in pages}

        listeners = Streams(Subscription(), most=9, standings=standings)
        assert await listeners.is_subscribed()
        shared, alone = await opened(listeners, first), await opened(listeners, second)
        await listeners.look_after_all()
        assert asked == [{(first, 1), (second, 1)}]
        assert await anext(shared) == b"data: beat 7  2-10\n\n"
        assert await anext(alone) == b"data: beat   \n\n"
        stand[first, 1] = Standing(8, True, "2")
        for _ in range(2):
            await listeners.look_after_all()
            assert await anext(shared) == b"data: beat 8 1 2\n\n"
            assert await anext(alone) == b"data: beat   \n\n"
        await close(shared)
        await listeners.look_after_all()
        assert asked[-1] == {(second, 1)}
        await close(alone)

    asyncio.run(scenario())


@pytest.mark.parametrize("error", [InterfaceError("closed"), RuntimeError("can't start new thread")])
def test_where_no_standings_can_be_told_all_streams_end_and_pages_poll(monkeypatch, caplog, error):
    monkeypatch.setattr(open_pages, "SAY_SECONDS", 0.01)

    def standings(_: Collection[Page]) -> dict[Page, Standing]:
        raise error

    async def scenario() -> None:
        listeners = Streams(Subscription(), most=9, standings=standings)
        assert await listeners.is_subscribed()
        page = await opened(listeners, uuid4())
        with pytest.raises(StopAsyncIteration):
            await asyncio.wait_for(anext(page), 30)
        assert not await listeners.is_subscribed()

    asyncio.run(scenario())
    assert f"poll again: {error}" in caplog.text


def test_a_reader_who_takes_nothing_is_cut_off(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(streams, "LIFE_SECONDS", 0.05)
    monkeypatch.setattr(streams, "GRACE_SECONDS", 0.0)

    async def scenario() -> None:
        listeners = Streams(Subscription(), most=9)
        assert await listeners.is_subscribed()

        async def send() -> None:
            stream = listeners.stream(uuid4(), place_of(listeners), 1, yes)
            try:
                await anext(stream)
                await asyncio.Event().wait()  # what the server does while the reader takes nothing
            finally:
                await close(stream)

        with pytest.raises(asyncio.CancelledError):
            await asyncio.create_task(send())
        assert len(listeners) == 0

    asyncio.run(scenario())


# What a commit does


def test_what_changed_meanwhile_is_one_message_and_an_absent_server_is_left_alone_for_a_while():
    sent: list[list[str]] = []
    now = 0.0
    away = True

    def send(sessions: Any) -> None:
        if away:
            raise ConnectionError("away")
        sent.append(list(sessions))

    thread = NewsThread(lambda: send, clock=lambda: now)
    thread._thread = threading.current_thread()  # none is begun

    def send_later() -> None:
        nonlocal now
        now += news.PAUSE_SECONDS
        thread.send()

    thread.tell("one")
    send_later()
    away = False
    thread.tell("two")
    send_later()
    assert sent == []
    now += news.AGAIN_SECONDS
    for session in ("one", "two", "one"):
        thread.tell(session)
    send_later()
    send_later()
    assert sent == [["one", "two"]]
    for number in range(news.MOST_SESSIONS + 5):
        thread.tell(str(number))
    send_later()
    assert len(sent[-1]) == news.MOST_SESSIONS


def test_the_two_commits_of_a_step_are_told_once_whenever_the_others_are_sent():
    now = 0.0
    sent: list[Any] = []
    thread = NewsThread(lambda: sent.append, clock=lambda: now)
    thread._thread = threading.current_thread()  # none is begun
    thread.tell("other")
    now += news.PAUSE_SECONDS * 0.9
    thread.tell("step")
    now += news.PAUSE_SECONDS * 0.1
    thread.send()
    now += news.PAUSE_SECONDS * 0.5
    thread.tell("step")
    thread.send()
    now += news.PAUSE_SECONDS * 0.5
    thread.send()
    assert sent == [["other"], ["step"]]


@pytest.mark.django_db(transaction=True)
def test_pages_are_told_after_the_commit_and_not_of_what_is_rolled_back(settings, monkeypatch):
    told: list[str] = []
    settings.REDIS_URL, settings.AGENTSTATE_MIRROR = "redis://127.0.0.1:1/0", False
    monkeypatch.setattr(NewsThread, "tell", lambda self, session: told.append(session))
    first, second = uuid4(), uuid4()
    with transaction.atomic():
        session_changed(first)
        assert told == []
    assert told == [str(first)]
    with transaction.atomic():
        session_changed(second)
        transaction.set_rollback(True)
    settings.AGENTSTATE_STREAMS = 0
    session_changed(second)
    assert told == [str(first)]


# The address, under the ASGI application


@pytest.fixture
def told(settings: Any, redis_url: str) -> Iterator[str]:
    """Pages are told over a real server."""
    settings.REDIS_URL, settings.AGENTSTATE_MIRROR = redis_url, False
    news._thread.cache_clear()
    yield redis_url
    news._thread.cache_clear()


async def beside(what: Callable[..., object], *arguments: object) -> None:
    """Do in another thread what uses the database."""

    def done() -> None:
        try:
            what(*arguments)
        finally:
            connections.close_all()

    await asyncio.to_thread(done)


class Browser:
    """What a browser sends, to the ASGI application."""

    def __init__(self, user: User) -> None:
        self.client = Client()
        self.client.force_login(user)
        self.application = Handler()

    def get(self, address: str, method: str = "GET") -> ApplicationCommunicator:
        parts = urlsplit(address)
        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": method,
            "path": parts.path,
            "query_string": parts.query.encode(),
            "headers": [(b"host", b"testserver"), cookie_of(self.client)],
            "client": ["127.0.0.1", 1],
            "server": ["testserver", 80],
        }
        return ApplicationCommunicator(self.application, scope)

    async def whole(self, address: str, method: str = "GET") -> tuple[int, dict[str, str], str]:
        """Status, headers and text of an answer that ends."""
        start, text = await whole_answer(self.get(address, method))
        return start["status"], _headers(start), text.decode()

    async def listener(self, session: Session) -> str:
        """The address at which the session's page listens. What has changed until now has been told."""
        await asyncio.to_thread(news._thread().send)
        _, _, text = await self.whole(f"/sessions/{session.pk}/")
        found = re.search(r'data-news="([^"]+)"', text)
        assert found is not None
        return found[1].replace("&amp;", "&")


def _headers(start: dict[str, Any]) -> dict[str, str]:
    return {name.decode().lower(): value.decode() for name, value in start["headers"]}


class Listening:
    """An open stream, which ends with the block."""

    def __init__(self, request: ApplicationCommunicator) -> None:
        self._request = request

    async def __aenter__(self) -> "Listening":
        await self._request.send_input({"type": "http.request"})
        self.start = await self._request.receive_output(30)
        assert self.start["status"] == 200
        assert await self.part() == OPEN
        return self

    async def part(self) -> bytes:
        body: bytes = (await self._request.receive_output(30)).get("body", b"")
        return body

    async def hear(self, part: bytes) -> None:
        """Read until this comes; before it come keep-alives only."""
        async with asyncio.timeout(30):
            while (heard := await self.part()) != part:
                assert heard.startswith(b"data: beat ")

    async def __aexit__(self, *error: object) -> None:
        await self._request.send_input({"type": "http.disconnect"})
        await self._request.wait(30)


asgi = pytest.mark.django_db(transaction=True)


@pytest.mark.slow
@asgi
def test_an_open_page_hears_of_a_commit_and_of_nothing_else(told: str):
    session = builders.running()
    other = builders.running()
    browser = Browser(builders.user())

    async def scenario() -> None:
        address = await browser.listener(session)
        async with Listening(browser.get(address)) as stream:
            headers = _headers(stream.start)
            assert headers["content-type"] == "text/event-stream"
            assert "no-store" in headers["cache-control"]
            assert headers["x-accel-buffering"] == "no"
            listeners = streams.streams()
            assert len(listeners) == 1
            await beside(session_changed, other.pk)
            await beside(session_changed, session.pk)
            # That is all: no id, no text, nothing that could be masked.
            assert await stream.part() == b"data: news\n\n"
        assert len(listeners) == 0

    asyncio.run(scenario())


@pytest.mark.slow
@asgi
def test_who_listens_has_the_session_open_and_hears_of_others_and_of_changes(told: str, monkeypatch):
    monkeypatch.setattr(open_pages, "SAY_SECONDS", 0.05)
    session, user = builders.running(), builders.user()
    browser = Browser(user)

    async def scenario() -> None:
        address = await browser.listener(session)
        await asyncio.to_thread(buffer().remove, f"agentstate:open:{session.pk}")
        async with Listening(browser.get(address)) as stream:
            await stream.hear(f"data: beat {session.change}  \n\n".encode())
            assert open_pages.users(session.pk) == {user.pk}
            open_pages.opened(session.pk, user.pk + 1)
            await stream.hear(f"data: beat {session.change}  {user.pk + 1}\n\n".encode())
            # What no news came of: a change, and that its worker is lost.
            changed = Session.objects.filter(pk=session.pk)
            an_hour_ago = timezone.now() - timedelta(hours=1)
            await beside(lambda: changed.update(change=session.change + 3, lease_expires_at=an_hour_ago))
            await stream.hear(f"data: beat {session.change + 3} 1 {user.pk + 1}\n\n".encode())

    asyncio.run(scenario())


@asgi
def test_how_sessions_stand_is_read_without_keeping_a_connection():
    """Nor does the check of a login keep one."""
    session = builders.running()
    threads: set[threading.Thread] = set()

    def may() -> bool:
        threads.add(threading.current_thread())
        return Session.objects.filter(pk=session.pk).exists()

    async def scenario() -> None:
        now = 0.0
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        listeners = Streams(Subscription(), most=9, clock=lambda: now)
        assert await listeners.is_subscribed()
        page = await opened(listeners, session.pk, may=may)
        now = streams.CHECK_SECONDS
        await listeners.look_after_all()
        assert await anext(page) == f"data: beat {session.change}  \n\n".encode()
        left = await asyncio.to_thread(lambda: (threading.current_thread(), connection.connection))
        assert left == (*threads, None)
        await close(page)

    asyncio.run(scenario())


@pytest.mark.parametrize("error", [OperationalError, InterfaceError])
def test_while_the_database_is_away_no_change_is_told(monkeypatch, error):
    def fails(*_: object, **__: object) -> None:
        raise error("away")

    monkeypatch.setattr(Session.objects, "filter", fails)
    page = (uuid4(), 1)
    assert standing.of_pages({page}) == {page: Standing(None, False, "")}


@pytest.mark.slow
@asgi
def test_an_open_stream_holds_no_connection_to_the_database(told: str, monkeypatch):
    """`Session.save` tells, too: what an action of a person changes."""

    session = builders.running()
    browser = Browser(builders.user())

    async def scenario() -> None:
        address = await browser.listener(session)
        closed: list[DatabaseWrapper] = []
        close = DatabaseWrapper.close

        def noted(wrapper: DatabaseWrapper) -> None:
            close(wrapper)
            closed.append(wrapper)

        monkeypatch.setattr(DatabaseWrapper, "close", noted)
        async with Listening(browser.get(address)) as stream:
            assert closed
            assert [wrapper.connection for wrapper in closed] == [None] * len(closed)
            await beside(session.save)
            assert await stream.part() == NEWS

    asyncio.run(scenario())


@pytest.mark.slow
@asgi
@pytest.mark.parametrize("change", ["logout", "password", "inactive", "no role", "deleted"])
def test_an_open_stream_ends_with_the_login_and_with_the_right(told: str, monkeypatch, change: str):
    monkeypatch.setattr(streams, "CHECK_SECONDS", 0.2)
    monkeypatch.setattr(open_pages, "SAY_SECONDS", 0.05)

    def withdraw(browser: Browser, user: User) -> None:
        if change == "logout":
            browser.client.logout()
        elif change == "password":
            user.set_password("another one")
            user.save()
        elif change == "inactive":
            User.objects.filter(pk=user.pk).update(is_active=False)
        elif change == "no role":
            user.groups.remove(*Group.objects.all())
        else:
            user.delete()

    session = builders.running()
    user = builders.user()
    browser = Browser(user)

    async def scenario() -> None:
        address = await browser.listener(session)
        async with Listening(browser.get(address)) as stream:
            await beside(withdraw, browser, user)
            await stream.hear(b"")

    asyncio.run(scenario())


@pytest.mark.slow
@asgi
def test_a_stream_is_refused_with_the_key_of_another_login_or_session_or_none(told: str):
    session = builders.running()
    other = builders.running()
    user = builders.user()
    browser, elsewhere = Browser(user), Browser(user)

    async def scenario() -> None:
        address = await browser.listener(session)
        for who, where in (
            (elsewhere, address),
            (browser, address.replace(str(session.pk), str(other.pk))),
            (browser, address.partition("?")[0]),
            (browser, address[:-1] + ("a" if address[-1] != "a" else "b")),
        ):
            status, headers, text = await who.whole(where)
            assert (status, text) == (403, "The key of this page is no longer valid.\n")
            assert headers["content-type"].startswith("text/plain")
        await beside(browser.client.logout)
        assert (await browser.whole(address))[0] == 403
        assert (await elsewhere.whole(await elsewhere.listener(session), "POST"))[0] in (403, 405)

    asyncio.run(scenario())


@pytest.mark.slow
@asgi
def test_behind_the_limit_a_page_is_told_to_come_back_later(told: str, settings):
    settings.AGENTSTATE_STREAMS = 1

    session = builders.running()
    browser = Browser(builders.user())

    async def scenario() -> None:
        address = await browser.listener(session)
        async with Listening(browser.get(address)):
            status, headers, _ = await browser.whole(address)
            assert (status, headers["retry-after"]) == (429, "30")
        async with Listening(browser.get(address)):
            pass

    asyncio.run(scenario())


@pytest.mark.slow
@asgi
def test_of_streams_that_are_asked_for_at_once_each_gets_a_place_or_is_told_to_come_back_later(told: str):
    session = builders.running()
    browser = Browser(builders.user())

    async def ask(address: str) -> tuple[int, str, ApplicationCommunicator]:
        request = browser.get(address)
        await request.send_input({"type": "http.request"})
        start = await request.receive_output(30)
        return start["status"], _headers(start).get("retry-after", ""), request

    async def scenario() -> None:
        address = await browser.listener(session)
        for _ in range(2):  # what the first ones had is free again
            answers = await asyncio.gather(*(ask(address) for _ in range(2 * MOST_OF_LOGIN)))
            told_apart = sorted((status, later) for status, later, _ in answers)
            assert told_apart == [(200, "")] * MOST_OF_LOGIN + [(429, "30")] * MOST_OF_LOGIN
            for status, _, request in answers:
                if status == 200:
                    assert (await request.receive_output(30))["body"] == OPEN
                    await request.send_input({"type": "http.disconnect"})
                await request.wait(30)
            assert len(streams.streams()) == 0

    asyncio.run(scenario())


@pytest.mark.slow
@asgi
@pytest.mark.parametrize(
    "how", ["client goes before the answer", "client goes before the first byte", "error"]
)
def test_a_stream_that_never_begins_leaves_its_place(told: str, monkeypatch: pytest.MonkeyPatch, how: str):
    session = builders.running()
    browser = Browser(builders.user())

    async def scenario() -> None:
        address = await browser.listener(session)
        reached = asyncio.Event()

        async def stays(*_: object) -> None:
            assert len(streams.streams()) == 1
            reached.set()
            if how == "error":
                # Behind any other error Django leaves the body of the request to the garbage collector, which warns.
                raise AssertionError("a mistake in a server")
            await asyncio.Event().wait()

        if how == "client goes before the answer":
            answer = Handler.get_response_async

            async def answer_is_lost(handler: Handler, request: Any) -> None:
                await answer(handler, request)
                await stays()

            monkeypatch.setattr(Handler, "get_response_async", answer_is_lost)
        else:
            monkeypatch.setattr(Handler, "send_response", stays)
        request = browser.get(address)
        await request.send_input({"type": "http.request"})
        await asyncio.wait_for(reached.wait(), 30)
        if how == "error":
            with pytest.raises(AssertionError, match="a mistake in a server"):
                await request.wait(30)
        else:
            await request.send_input({"type": "http.disconnect"})
            await request.wait(30)
        assert len(streams.streams()) == 0

    asyncio.run(scenario())


@pytest.mark.slow
@asgi
def test_head_opens_no_stream(told: str):
    session = builders.running()
    browser = Browser(builders.user())

    async def scenario() -> None:
        status, headers, text = await browser.whole(await browser.listener(session), "HEAD")
        assert (status, headers["content-type"], text) == (200, "text/event-stream", "")
        assert len(streams.streams()) == 0

    asyncio.run(scenario())


@asgi
def test_without_its_server_a_page_is_refused_and_open_streams_end(redis_server: services.Redis, told: str):
    session = builders.running()
    browser = Browser(builders.user())

    async def scenario() -> None:
        address = await browser.listener(session)
        async with Listening(browser.get(address)) as stream:
            redis_server.stop()
            try:
                assert await stream.part() == b""
                assert (await browser.whole(address))[0] == 503
            finally:
                redis_server.start()  # by this thread, with which the server would end

    asyncio.run(scenario())


@pytest.mark.slow
@asgi
def test_where_nothing_can_happen_by_itself_no_page_listens(told: str):
    session = builders.STATES["done"]()
    browser = Browser(builders.user())

    async def scenario() -> None:
        _, _, text = await browser.whole(f"/sessions/{session.pk}/")
        assert "data-news" not in text

    asyncio.run(scenario())


# Where it is not offered


@pytest.mark.slow
@pytest.mark.django_db
def test_under_wsgi_no_page_listens_and_the_address_is_not_there(client: Client, settings):
    settings.REDIS_URL, settings.AGENTSTATE_MIRROR = "redis://127.0.0.1:1/0", False
    client.force_login(builders.user())
    session = builders.running()
    for tab in ("", "conversation/"):
        text = client.get(f"/sessions/{session.pk}/{tab}").content.decode()
        assert "data-live" in text
        assert "data-news" not in text
    assert client.get(f"/sessions/{session.pk}/news/").status_code == 404


@pytest.mark.parametrize(
    "factory, url, most, offered",
    [
        (AsyncRequestFactory, "redis://x", 5, True),
        (RequestFactory, "redis://x", 5, False),
        (AsyncRequestFactory, "", 5, False),
        (AsyncRequestFactory, "redis://x", 0, False),
    ],
)
def test_a_stream_is_offered_under_asgi_with_redis_only(settings, factory, url, most, offered):
    settings.REDIS_URL, settings.AGENTSTATE_STREAMS = url, most
    assert is_offered(factory().get("/")) is offered


def test_the_deployment_check_says_where_streams_would_take_all_file_descriptors(settings):
    settings.REDIS_URL, settings.AGENTSTATE_STREAMS = "redis://x", 10**9
    [message] = descriptors_suffice(None)
    assert (message.id, "1000000000 streams" in message.msg) == ("agentstate.W004", True)
    settings.AGENTSTATE_STREAMS = 1
    assert descriptors_suffice(None) == []
    settings.REDIS_URL, settings.AGENTSTATE_STREAMS = "", 10**9
    assert descriptors_suffice(None) == []


@pytest.mark.django_db(transaction=True)
def test_telling_pages_adds_no_statement_to_a_run_and_tells_of_each_commit(desk: Desk, settings, monkeypatch):
    def statements() -> int:
        desk.agent(lambda: talking(SlowModel(["Yes."], lambda number: None)))
        with CaptureQueriesContext(connection) as queries:
            assert desk.run(desk.start()).final_answer == "Yes."
        return len(queries)

    told: list[str] = []
    monkeypatch.setattr(NewsThread, "tell", lambda self, session: told.append(session))
    settings.AGENTSTATE_MIRROR = False
    before = statements()
    assert told == []
    settings.REDIS_URL = "redis://127.0.0.1:1/0"
    assert statements() == before
    assert len(told) > 2
