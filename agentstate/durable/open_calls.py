"""The tool calls that an asynchronous run has open: the run and its journal do not end before them.

Where one call of a step ends the run, `asyncio.gather` does not wait for those beside it, and a tool in a thread
cannot be cancelled. A synchronous run needs none of this: Haystack waits for its calls.
"""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress

from agentstate.durable.interruptions import Interruption


class RunIsOver(Interruption):
    """A call must not start, since its run is ending."""


class OpenCalls:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ends: dict[Future[None], asyncio.Task[object] | None] = {}
        self._is_over = False

    @contextmanager
    def call(self) -> Iterator[None]:
        """Around a call, in its thread or task.

        :raises RunIsOver: if the run is ending.
        """
        end: Future[None] = Future()
        with self._lock:
            if self._is_over:
                raise RunIsOver
            self._ends[end] = _task()
        try:
            yield
        finally:
            with self._lock:
                del self._ends[end]
            end.set_result(None)

    async def wait(self) -> None:
        """Let no other call start, and wait until the open ones have ended. A cancellation is passed on to them."""
        self._is_over = True
        cancelled = None
        while open_calls := self._open():
            try:
                await asyncio.wait([asyncio.wrap_future(end) for end in open_calls])
            except asyncio.CancelledError as error:
                cancelled = error
                for task in open_calls.values():
                    if task is not None:
                        task.cancel()
        if cancelled is not None:
            raise cancelled

    def _open(self) -> dict[Future[None], asyncio.Task[object] | None]:
        with self._lock:
            return dict(self._ends)


class NoOpenCalls:
    """Those of a synchronous run."""

    def call(self) -> AbstractContextManager[None]:
        return nullcontext()

    async def wait(self) -> None:
        """At once."""


def _task() -> asyncio.Task[object] | None:
    with suppress(RuntimeError):  # a thread without an event loop
        return asyncio.current_task()
    return None
