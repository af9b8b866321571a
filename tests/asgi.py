"""The desk under ASGI: in a real server, in a thread of the tests, and asked directly."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.cookies import SimpleCookie
from typing import Any

import uvicorn
from asgiref.testing import ApplicationCommunicator
from django.contrib.staticfiles.handlers import ASGIStaticFilesHandler
from django.test import Client

from agentstate.asgi import Handler
from tools.services import free_port, wait_for


class Server:
    """
    url: where it listens.
    """

    def __init__(self) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        config = uvicorn.Config(
            ASGIStaticFilesHandler(Handler()),
            port=port,
            lifespan="off",
            log_config=None,
            timeout_graceful_shutdown=1,
            proxy_headers=False,  # as docs/operations.md says
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=lambda: asyncio.run(self._server.serve()), daemon=True)

    def start(self) -> None:
        self._thread.start()
        wait_for(lambda: self._server.started, "the ASGI server")

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(30)


@contextmanager
def asgi_server() -> Iterator[Server]:
    server = Server()
    server.start()
    try:
        yield server
    finally:
        server.stop()


def cookie_of(client: Client) -> tuple[bytes, bytes]:
    """The header by which a request is one of the client's."""
    cookie = SimpleCookie({name: morsel.value for name, morsel in client.cookies.items()})
    return b"cookie", cookie.output(header="", sep=";").strip().encode()


async def whole_answer(request: ApplicationCommunicator, body: bytes = b"") -> tuple[dict[str, Any], bytes]:
    """What an answer begins with, and all of its text, once the application has the body."""
    await request.send_input({"type": "http.request", "body": body})
    start = await request.receive_output(30)
    text = b""
    while True:
        part = await request.receive_output(30)
        text += part.get("body", b"")
        if not part.get("more_body"):
            await request.wait(30)
            return start, text


def get(application: Any, path: str, **scope: Any) -> ApplicationCommunicator:
    """A request, of which nothing has been sent yet but what the scope says."""
    headers = [(b"host", b"testserver"), *scope.pop("headers", [])]
    request = {"type": "http", "http_version": "1.1", "method": "GET", "path": path, "query_string": b""}
    return ApplicationCommunicator(application, request | {"headers": headers} | scope)


async def answer(request: ApplicationCommunicator, body: bytes = b"") -> tuple[int, bytes]:
    start, text = await whole_answer(request, body)
    return start["status"], text
