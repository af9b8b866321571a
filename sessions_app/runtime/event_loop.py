"""The event loop of this process, for agents that workers run by `run_async`: one for all of their sessions.

The clients inside an agent belong to the event loop on which they were first used, and an agent lives as long as its
process. The loop has a thread of its own, so that it serves the threads of any Celery pool.
"""

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

from sessions_app.runtime.connection import forget_connections

Result = TypeVar("Result")

_loops: dict[int, asyncio.AbstractEventLoop] = {}
_starting = threading.Lock()


def run_on_loop(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Run the coroutine on the event loop, with this thread's context variables, and wait for its result.

    If this thread is interrupted meanwhile, the coroutine is cancelled.
    """
    running = asyncio.run_coroutine_threadsafe(coroutine, _loop())
    try:
        return running.result()
    except BaseException:
        running.cancel()
        raise


def _loop() -> asyncio.AbstractEventLoop:
    """It starts with the first call, also after a fork."""
    with _starting:
        if os.getpid() not in _loops:
            loop = asyncio.new_event_loop()
            loop.set_default_executor(_ToolThreads(thread_name_prefix="agentstate-tool"))
            threading.Thread(target=_serve, args=(loop,), name="agentstate-loop", daemon=True).start()
            _loops[os.getpid()] = loop
        return _loops[os.getpid()]


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    """Without end: SystemExit in a task stops the loop, and is raised in the thread that waits for the task."""
    while True:
        with suppress(SystemExit, KeyboardInterrupt):
            loop.run_forever()


class _ToolThreads(ThreadPoolExecutor):
    """Threads that keep no database connection: what a tool or a hook has opened is closed behind it."""

    def submit(self, fn: Callable[..., Result], /, *args: Any, **kwargs: Any) -> Future[Result]:
        def call() -> Result:
            try:
                return fn(*args, **kwargs)
            finally:
                forget_connections()

        return super().submit(call)
