"""Requests under ASGI: each in one thread that stays, as under WSGI, and none of them held by a slow client."""

import asyncio
import threading
from typing import Any

import pytest
from asgiref.testing import ApplicationCommunicator
from django.core.signals import request_finished, request_started
from django.db.backends.base.base import BaseDatabaseWrapper
from django.test import Client

from agentstate.asgi import Handler
from tests import builders

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]


def get(application: Handler, path: str, **scope: Any) -> ApplicationCommunicator:
    headers = [(b"host", b"testserver"), *scope.pop("headers", [])]
    request = {"type": "http", "http_version": "1.1", "method": "GET", "path": path, "query_string": b""}
    return ApplicationCommunicator(application, request | {"headers": headers} | scope)


async def answer(request: ApplicationCommunicator, body: bytes = b"") -> tuple[int, bytes]:
    """Status and text of what the application answers once it has the body."""
    await request.send_input({"type": "http.request", "body": body})
    start = await request.receive_output(30)
    text = b""
    while True:
        part = await request.receive_output(30)
        text += part.get("body", b"")
        if not part.get("more_body"):
            await request.wait(30)
            return start["status"], text


def cookie_of(client: Client) -> tuple[bytes, bytes]:
    return b"cookie", "; ".join(f"{key}={morsel.value}" for key, morsel in client.cookies.items()).encode()


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
