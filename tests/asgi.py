"""The desk under a real ASGI server, in a thread of the tests."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from django.contrib.staticfiles.handlers import ASGIStaticFilesHandler

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
