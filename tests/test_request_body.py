"""A body under ASGI: of one that is too large no more is read than the limit, and none of it is stored."""

import asyncio
import http.client
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

import pytest
from django.core.handlers.asgi import ASGIHandler

from agentstate.asgi import Handler
from tests.asgi import asgi_server

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]

MB = 1_000_000
FORM = (b"content-type", b"application/x-www-form-urlencoded")
VIEW = "/login/"
COROUTINE = f"/sessions/{UUID(int=1)}/news/"


class Sender:
    """A client that sends a long body in parts of a megabyte, and notes how many were taken from it."""

    PARTS = 9

    def __init__(self) -> None:
        self.taken = 0
        self.answered: list[Mapping[str, Any]] = []

    async def receive(self) -> dict[str, Any]:
        self.taken += 1
        await asyncio.sleep(0)
        return {"type": "http.request", "body": b"x" * MB, "more_body": self.taken < self.PARTS}

    async def send(self, message: Mapping[str, Any]) -> None:
        self.answered.append(message)

    def ask(self, path: str, *headers: tuple[bytes, bytes]) -> tuple[int, str]:
        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": "POST",
            "path": path,
            "query_string": b"",
            "headers": [(b"host", b"testserver"), *headers],
        }

        async def scenario() -> None:
            async with asyncio.timeout(30):
                await Handler(threads=1)(scope, self.receive, self.send)

        asyncio.run(scenario())
        start, *parts = self.answered
        return start["status"], b"".join(part.get("body", b"") for part in parts).decode()


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The size of each body that Django has read."""
    sizes: list[int] = []
    read_body = ASGIHandler.read_body

    async def noted(handler: Any, receive: Any) -> Any:
        body: Any = await read_body(handler, receive)
        assert not body._rolled, "It was written to disk."
        sizes.append(len(body.read()))
        body.seek(0)
        return body

    monkeypatch.setattr(ASGIHandler, "read_body", noted)
    return sizes


@pytest.mark.parametrize("path", [VIEW, COROUTINE])
def test_nothing_is_read_of_a_body_that_is_announced_as_too_large(stored: list[int], path: str) -> None:
    client = Sender()
    status, text = client.ask(path, FORM, (b"content-length", b"10000000000"))
    assert status == 413
    assert "<h1>Too large</h1>" in text
    assert client.taken == 0
    assert stored == [0]


@pytest.mark.parametrize("path", [VIEW, COROUTINE])
def test_a_body_in_chunks_is_read_up_to_the_limit_only(stored: list[int], path: str) -> None:
    client = Sender()
    status, text = client.ask(path, FORM, (b"transfer-encoding", b"chunked"))
    assert status == 413
    assert "<h1>Too large</h1>" in text
    assert client.taken == 3
    assert stored == [2 * MB]


@pytest.mark.parametrize("said", [b"12", b"-5", b"many"])
def test_a_body_longer_than_it_was_said_to_be_is_read_up_to_the_limit_only(
    stored: list[int], said: bytes
) -> None:
    client = Sender()
    assert client.ask(VIEW, FORM, (b"content-length", said))[0] == 413
    assert client.taken == 3
    assert stored == [2 * MB]


def post(url: str, body: Any) -> tuple[int, str]:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=30)
    try:
        connection.request("POST", VIEW, body, {FORM[0].decode(): FORM[1].decode()})
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def test_a_server_answers_a_large_body_with_the_page_however_it_is_sent(settings: Any) -> None:
    with asgi_server() as server:
        for size, status in ((settings.DATA_UPLOAD_MAX_MEMORY_SIZE, 403), (8 * MB, 413)):
            whole = b"x" * size
            chunks = [whole[at : at + MB] for at in range(0, size, MB)]
            for body in (whole, iter(chunks)):
                found, text = post(server.url, body)
                assert found == status  # what is not too large is refused for want of a CSRF token
                assert ("<h1>Too large</h1>" in text) == (status == 413)
