"""The ASGI entry point, for any ASGI server: streams on its event loop, all other requests in threads that stay.

Django's own handler goes to a thread and back for each middleware and for the beginning and the end of a request, and
to a new thread for each request, which costs more than an answer without news. Here such a request is answered in one
go, as by a WSGI server, by a thread that keeps its connection to the database.
"""

import asyncio
import logging
import os
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from typing import IO, Any

import django
from asgiref.sync import iscoroutinefunction
from django.conf import settings
from django.core.exceptions import RequestAborted
from django.core.handlers.asgi import ASGIHandler, get_script_prefix
from django.core.handlers.base import BaseHandler
from django.core.signals import request_started
from django.db import close_old_connections
from django.http import FileResponse
from django.urls import Resolver404, resolve, set_script_prefix

from agentstate.preload import preload
from agentstate.request_body import limited
from agentstate.request_end import ending
from agentstate.turns import Turns

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "agentstate.settings")

logger = logging.getLogger("django.request")

# So many requests can wait for a lock of the database before others wait for them.
THREADS = 32


class Handler(ASGIHandler):
    """Django's handler, which answers requests for views that are no coroutines in its threads."""

    def __init__(self, *, threads: int = THREADS) -> None:
        super().__init__()
        self._synchronous = BaseHandler()
        self._synchronous.load_middleware()
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="agentstate-web")
        self._turns = Turns()

    async def handle(self, scope: Any, receive: Any, send: Any) -> None:
        if _is_for_coroutine(scope):
            with ending(scope) as scope:
                receive = limited(scope, receive, settings.DATA_UPLOAD_MAX_MEMORY_SIZE)
                await super().handle(scope, receive, send)
            return
        scope = {**scope}
        receive = limited(scope, receive, settings.DATA_UPLOAD_MAX_MEMORY_SIZE)
        try:
            body = await self.read_body(receive)  # here, so that no thread waits for a slow client
        except RequestAborted:
            return
        # What is set around the application counts in the thread, and nothing that is set there outlasts the request.
        gone = threading.Event()
        job = self._threads.submit(copy_context().run, self._answer_in_turn, scope, body, gone)
        response = None
        try:
            response = await self._unless_gone(job, receive)
        finally:  # also where the server cancels this, which it does when it ends
            if response is None:
                gone.set()
                if job.cancel():
                    body.close()
                else:
                    job.add_done_callback(_close)
        if response is None:
            return
        try:
            await self.send_response(response, send)
        finally:
            if response.streaming:
                await asyncio.get_running_loop().run_in_executor(self._threads, response.close)

    async def _unless_gone(self, job: "Future[Any]", receive: Any) -> Any:
        """The answer; None if the client goes away before there is one."""
        answering = asyncio.wrap_future(job)
        listening = asyncio.create_task(self.listen_for_disconnect(receive))
        try:
            await asyncio.wait([answering, listening], return_when=asyncio.FIRST_COMPLETED)
        finally:
            listening.cancel()
            with suppress(RequestAborted, asyncio.CancelledError):
                await listening
        return answering.result() if answering.done() else None

    def _answer_in_turn(self, scope: Any, body: IO[bytes], gone: threading.Event) -> Any:
        """The answer; None if the client has gone away before it was the thread's turn."""
        with self._turns.turn():
            if not gone.is_set():
                return self._answer(scope, body)
        body.close()
        return None

    def _answer(self, scope: Any, body: IO[bytes]) -> Any:
        """The answer, which is closed unless its parts are still to be read."""
        set_script_prefix(get_script_prefix(scope))
        request_started.send(sender=type(self), scope=scope)
        request, refusal = self.create_request(scope, body)
        response: Any = refusal if request is None else self._synchronous.get_response(request)
        response._handler_class = type(self)
        response._resource_closers.append(body.close)
        if not response.streaming:
            try:
                response.close()
            except Exception:  # what was done is done, and answered
                logger.exception("A request was answered, and could not be closed: %s", scope["path"])
        elif not response.is_async:
            if isinstance(response, FileResponse):
                response.block_size = self.chunk_size
            response.streaming_content = self._read(iter(response.streaming_content))
            close_old_connections()  # its parts are read in any of the threads
        return response

    async def _read(self, parts: Iterator[bytes]) -> AsyncIterator[bytes]:
        """The parts of a file, none of which is read on the event loop."""
        loop = asyncio.get_running_loop()
        while (part := await loop.run_in_executor(self._threads, next, parts, None)) is not None:
            yield part


def _is_for_coroutine(scope: Any) -> bool:
    try:
        return iscoroutinefunction(resolve(scope["path"].removeprefix(get_script_prefix(scope))).func)
    except Resolver404:
        return False


def _close(job: "Future[Any]") -> None:
    """Close an answer that nobody waits for any more."""
    if job.exception() is None and job.result() is not None and job.result().streaming:
        job.result().close()


django.setup(set_prefix=False)
application = Handler()
preload()
