"""The ASGI entry point, for any ASGI server: streams on its event loop, all other requests in threads that stay.

Django's own handler goes to a thread and back for each middleware and for the beginning and the end of a request, and
to a new thread for each request, which costs more than an answer without news. Here such a request is answered in one
go, as by a WSGI server, by a thread that keeps its connection to the database.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from inspect import iscoroutinefunction
from typing import IO, Any

import django
from django.core.exceptions import RequestAborted
from django.core.handlers.asgi import ASGIHandler, get_script_prefix
from django.core.handlers.base import BaseHandler
from django.core.signals import request_started
from django.urls import Resolver404, resolve, set_script_prefix

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "agentstate.settings")


class Handler(ASGIHandler):
    """Django's handler, which answers requests for views that are no coroutines in its threads.

    :param threads: How many; None for four more than there are processors, as many as Python's pools have.
    """

    def __init__(self, *, threads: int | None = None) -> None:
        super().__init__()
        self._synchronous = BaseHandler()
        self._synchronous.load_middleware()
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="agentstate-web")

    async def handle(self, scope: Any, receive: Any, send: Any) -> None:
        if _is_for_coroutine(scope):
            await super().handle(scope, receive, send)
            return
        try:
            body = await self.read_body(receive)  # here, so that no thread waits for a slow client
        except RequestAborted:
            return
        loop = asyncio.get_running_loop()
        response = await loop.run_in_executor(self._threads, self._answer, scope, body)
        try:
            await self.send_response(response, send)
        finally:
            if response.streaming:
                await loop.run_in_executor(self._threads, response.close)

    def _answer(self, scope: Any, body: IO[bytes]) -> Any:
        """The answer, closed unless it is a file, which is sent in parts."""
        set_script_prefix(get_script_prefix(scope))
        request_started.send(sender=type(self), scope=scope)
        request, refusal = self.create_request(scope, body)
        response: Any = refusal
        if request is not None:
            response = self._synchronous.get_response(request)
        else:
            body.close()
        if response.streaming:
            response.streaming_content = self._read(iter(response.streaming_content))
        else:
            response.close()
        return response

    async def _read(self, parts: Iterator[bytes]) -> AsyncIterator[bytes]:
        """The parts of a file, none of which is read on the event loop."""
        loop = asyncio.get_running_loop()
        while part := await loop.run_in_executor(self._threads, next, parts, b""):
            yield part


def _is_for_coroutine(scope: Any) -> bool:
    try:
        return iscoroutinefunction(resolve(scope["path"].removeprefix(get_script_prefix(scope))).func)
    except Resolver404:
        return False


django.setup(set_prefix=False)
application = Handler()
