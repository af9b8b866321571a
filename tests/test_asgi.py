"""Requests under ASGI: each in one thread that stays, as under WSGI, and none of them held by a slow client."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextvars import ContextVar
from typing import Any
from uuid import uuid4

import pytest
from django.core.signals import request_finished, request_started
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.http import HttpResponse, StreamingHttpResponse
from django.test import Client

from agentstate.asgi import Handler, _is_for_coroutine
from agentstate.turns import Turns
from tests import builders
from tests.asgi import answer, cookie_of, get

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def threads(monkeypatch):
    """The names of the threads that did something for a request, by what it was."""
    did: dict[str, list[str]] = {"began": [], "asked the database": [], "ended": []}

    def note(what: str) -> Any:
        return lambda **_: did[what].append(threading.current_thread().name)

    receivers = [(request_started, note("began")), (request_finished, note("ended"))]
    for signal, receiver in receivers:
        signal.connect(receiver)
    cursor = BaseDatabaseWrapper.cursor

    def noted(wrapper: BaseDatabaseWrapper) -> Any:
        did["asked the database"].append(threading.current_thread().name)
        return cursor(wrapper)

    monkeypatch.setattr(BaseDatabaseWrapper, "cursor", noted)
    yield did
    for signal, receiver in receivers:
        signal.disconnect(receiver)


def test_a_request_begins_asks_the_database_and_ends_in_one_thread_which_the_next_one_has_too(threads):
    session = builders.done()
    client = Client()
    client.force_login(builders.user())
    for names in threads.values():
        names.clear()
    application = Handler(threads=1)

    async def scenario() -> None:
        for _ in range(2):
            status, text = await answer(
                get(application, f"/sessions/{session.pk}/", headers=[cookie_of(client)])
            )
            assert status == 200
            assert str(session.pk).encode() in text

    asyncio.run(scenario())
    assert len(threads["began"]) == len(threads["ended"]) == 2
    [name] = {name for names in threads.values() for name in names}
    assert name.startswith("agentstate-web")


def test_who_sends_a_body_slowly_keeps_nobody_waiting():
    application = Handler(threads=1)

    async def scenario() -> None:
        slow = [get(application, "/login/", method="POST") for _ in range(3)]
        for request in slow:
            await request.send_input({"type": "http.request", "body": b"username=", "more_body": True})
        assert (await answer(get(application, "/login/")))[0] == 200
        for request in slow:
            assert (await answer(request, b"anna"))[0] == 403  # without a CSRF token
            await request.wait(30)

    asyncio.run(scenario())


def answering(application: Handler, monkeypatch: Any, answer: Callable[[Any], Any]) -> None:
    """Let this be what the middleware and the views answer."""
    monkeypatch.setattr(application._synchronous, "get_response", answer)


def test_a_thread_keeps_its_connection_to_the_database_for_the_next_request(monkeypatch):
    monkeypatch.setitem(connections["default"].settings_dict, "CONN_MAX_AGE", 60)
    opened = []
    connect = BaseDatabaseWrapper.connect

    def noted(wrapper: BaseDatabaseWrapper) -> None:
        opened.append(wrapper)
        connect(wrapper)

    monkeypatch.setattr(BaseDatabaseWrapper, "connect", noted)
    client = Client()
    client.force_login(builders.user())
    opened.clear()
    application = Handler(threads=1)

    async def scenario() -> None:
        for _ in range(3):
            assert (await answer(get(application, "/workers/", headers=[cookie_of(client)])))[0] == 200

    asyncio.run(scenario())
    application._threads.submit(connections.close_all).result()
    assert len(opened) == 1


def test_requests_are_answered_at_the_same_time(monkeypatch):
    application = Handler()
    both = threading.Barrier(2)

    def meet(request: Any) -> HttpResponse:
        both.wait(30)
        return HttpResponse(b"met")

    answering(application, monkeypatch, meet)

    async def scenario() -> None:
        requests = [answer(get(application, "/")) for _ in range(2)]
        assert await asyncio.gather(*requests) == [(200, b"met")] * 2

    asyncio.run(scenario())


# It waits for a thread, or in a thread for its turn.
@pytest.mark.parametrize("threads", [1, 4])
def test_who_goes_away_while_others_are_answered_is_not_answered_at_all(monkeypatch, threads):
    application = Handler(threads=threads)
    # For these nobody ever works for long.
    application._turns = Turns(at_once=1, clock=lambda: 0.0)
    began, may_end = threading.Event(), threading.Event()
    asked = []

    def slowly(request: Any) -> HttpResponse:
        asked.append(request.path)
        began.set()
        may_end.wait(30)
        return HttpResponse()

    answering(application, monkeypatch, slowly)

    async def scenario() -> None:
        first = asyncio.create_task(answer(get(application, "/first/")))
        await asyncio.to_thread(began.wait, 30)
        gone = get(application, "/gone/")
        await gone.send_input({"type": "http.request"})
        await gone.send_input({"type": "http.disconnect"})
        await gone.wait(30)
        may_end.set()
        assert (await first)[0] == 200
        assert (await answer(get(application, "/next/")))[0] == 200

    asyncio.run(scenario())
    assert asked == ["/first/", "/next/"]


def never_sent(
    began: threading.Event, may_end: threading.Event, closed: threading.Event, asked: list[str]
) -> Callable[[Any], StreamingHttpResponse]:
    """A view whose answer takes until it may end, and that says when the answer is closed."""

    def slowly(request: Any) -> StreamingHttpResponse:
        asked.append(request.path)
        began.set()
        may_end.wait(30)
        response = StreamingHttpResponse(iter([b"never sent"]))
        response._resource_closers.append(closed.set)  # type: ignore[attr-defined]
        return response

    return slowly


# In line for a thread, or for its turn in one.
@pytest.mark.parametrize("threads", [1, 4])
def test_when_the_server_ends_what_is_in_line_is_not_answered_any_more(monkeypatch, threads):
    """It then cancels what it waits for; those who asked were told so."""
    application = Handler(threads=threads)
    application._turns = Turns(at_once=1, clock=lambda: 0.0)
    began, may_end, closed = threading.Event(), threading.Event(), threading.Event()
    asked: list[str] = []

    answering(application, monkeypatch, never_sent(began, may_end, closed, asked))

    async def scenario() -> None:
        requests = [get(application, path) for path in ("/first/", "/second/", "/third/")]
        for request in requests:
            await request.send_input({"type": "http.request"})
            await asyncio.to_thread(began.wait, 30)
        async with asyncio.timeout(30):
            while application._threads._work_queue.qsize() + len(application._turns._line) < 2:
                await asyncio.sleep(0)
        tasks = [request.future for request in requests]
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        may_end.set()
        assert await asyncio.to_thread(closed.wait, 30)
        await asyncio.to_thread(application._threads.shutdown)

    asyncio.run(scenario())
    assert asked == ["/first/"]


def test_an_answer_that_nobody_waits_for_any_more_is_closed(monkeypatch):
    application = Handler(threads=1)
    began, may_end, closed = threading.Event(), threading.Event(), threading.Event()

    answering(application, monkeypatch, never_sent(began, may_end, closed, asked=[]))

    async def scenario() -> None:
        gone = get(application, "/")
        await gone.send_input({"type": "http.request"})
        await asyncio.to_thread(began.wait, 30)
        await gone.send_input({"type": "http.disconnect"})
        await gone.wait(30)
        may_end.set()
        assert await asyncio.to_thread(closed.wait, 30)

    asyncio.run(scenario())


def test_what_is_set_around_the_application_counts_and_nothing_outlasts_a_request(monkeypatch):
    around: ContextVar[str] = ContextVar("around", default="")
    within: ContextVar[str] = ContextVar("within", default="")
    application = Handler(threads=1)

    def tell(request: Any) -> HttpResponse:
        text = f"{around.get()} {within.get()}".strip()
        within.set("of another request")
        return HttpResponse(text)

    answering(application, monkeypatch, tell)

    async def outer(scope: Any, receive: Any, send: Any) -> None:
        around.set("R1")
        await application(scope, receive, send)

    async def scenario() -> None:
        for _ in range(2):
            assert await answer(get(outer, "/")) == (200, b"R1")

    asyncio.run(scenario())


def test_a_stream_is_read_part_by_part_and_not_on_the_event_loop(monkeypatch):
    application = Handler()
    read: list[str] = []

    def parts() -> Iterator[bytes]:
        for part in (b"a,b\n", b"", b"c,d\n"):
            read.append(threading.current_thread().name)
            yield part

    answering(application, monkeypatch, lambda request: StreamingHttpResponse(parts()))

    async def scenario() -> None:
        request = get(application, "/")
        await request.send_input({"type": "http.request"})
        await request.receive_output(30)
        assert (await request.receive_output(30))["body"] == b"a,b\n"
        text = b""
        while (part := await request.receive_output(30)).get("more_body"):
            text += part["body"]
        assert text == b"c,d\n"
        await request.wait(30)

    asyncio.run(scenario())
    assert len(read) == 3
    assert all(name.startswith("agentstate-web") for name in read)


def test_a_stream_for_the_event_loop_is_read_there(monkeypatch):
    application = Handler()

    async def parts() -> AsyncIterator[bytes]:
        yield threading.current_thread().name.encode()

    answering(application, monkeypatch, lambda request: StreamingHttpResponse(parts()))

    async def scenario() -> None:
        assert await answer(get(application, "/")) == (200, threading.current_thread().name.encode())

    asyncio.run(scenario())


def test_an_answer_counts_where_its_request_cannot_be_closed(monkeypatch, caplog):
    application = Handler()

    def fail(**_: Any) -> None:
        raise ConnectionError("The database went away.")

    answering(application, monkeypatch, lambda request: HttpResponse(b"paid"))

    async def scenario() -> None:
        assert await answer(get(application, "/pay/")) == (200, b"paid")

    request_finished.connect(fail)
    try:
        asyncio.run(scenario())
    finally:
        request_finished.disconnect(fail)
    assert "could not be closed: /pay/" in caplog.text


def test_only_streams_of_news_are_for_the_event_loop_also_under_a_prefix():
    news = f"/sessions/{uuid4()}/news/"
    assert _is_for_coroutine({"path": news})
    assert _is_for_coroutine({"path": f"/desk{news}", "root_path": "/desk"})
    assert not _is_for_coroutine({"path": f"/desk{news}"})
    assert not _is_for_coroutine({"path": "/inbox/"})


def test_who_goes_away_before_the_body_is_sent_gets_no_answer(threads):
    application = Handler()

    async def scenario() -> None:
        request = get(application, "/login/", method="POST")
        await request.send_input({"type": "http.request", "body": b"username=", "more_body": True})
        await request.send_input({"type": "http.disconnect"})
        await request.wait(30)
        assert await request.receive_nothing()

    asyncio.run(scenario())
    assert threads["began"] == []


def test_an_address_that_is_no_text_is_answered_with_400():
    async def scenario() -> None:
        assert (await answer(get(Handler(), "/", query_string=b"q=\xff\xfe")))[0] == 400

    asyncio.run(scenario())


def test_a_file_is_sent_whole(settings, tmp_path):
    (tmp_path / "long.txt").write_text("0123456789" * 20_000)
    settings.WHITENOISE_ROOT = tmp_path
    application = Handler()

    async def scenario() -> None:
        status, text = await answer(get(application, "/long.txt"))
        assert status == 200
        assert text.decode() == "0123456789" * 20_000

    asyncio.run(scenario())


def test_under_a_prefix_the_addresses_of_a_page_begin_with_it():
    async def scenario() -> None:
        status, text = await answer(get(Handler(), "/desk/login/", root_path="/desk"))
        assert status == 200
        assert b'"/desk/' in text
        assert b'"/desk/' not in (await answer(get(Handler(), "/login/")))[1]

    asyncio.run(scenario())


def test_what_no_view_is_for_is_answered_with_404():
    async def scenario() -> None:
        assert (await answer(get(Handler(), "/nowhere/")))[0] == 404

    asyncio.run(scenario())
