"""Calls the function of a tool with a time limit, and cleans up what the function would leave behind.

An event loop that the tool leaves running in its thread, and a process that it forks, end with the call.
"""

import asyncio
import contextvars
import os
import queue
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from agentstate.durable.interruptions import Interruption, contained


class TimedOut(Interruption):
    """The tool has not ended in its time."""


def call(
    invoke: Callable[..., Any],
    kwargs: dict[str, Any],
    *,
    seconds: float | None,
    thread_done: Callable[[], None],
) -> Any:
    """Call the tool: in this thread, or, with a limit on its time, in one of its own, since no thread can be stopped.

    :param thread_done: Called at the end of a thread of its own.
    :raises TimedOut: if the tool has not ended by then.
    :raises NotAnException: see `contained`.
    """
    with contained():
        if seconds is not None:
            return _call_with_timeout(seconds, invoke, kwargs, thread_done)
        with _in_this_process(), _without_its_event_loop():
            return invoke(**kwargs)


async def call_async(
    invoke: Callable[..., Awaitable[Any]], kwargs: dict[str, Any], *, seconds: float | None
) -> Any:
    """Await the tool, and cancel it after so many seconds.

    :raises TimedOut: if that has ended the tool.
    :raises NotAnException: see `contained`.
    """
    with contained(), _in_this_process():
        if seconds is None:
            return await invoke(**kwargs)
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                return await invoke(**kwargs)
        except TimeoutError:
            if limit.expired():
                raise TimedOut from None
            raise


def _call_with_timeout(
    seconds: float, invoke: Callable[..., Any], kwargs: dict[str, Any], thread_done: Callable[[], None]
) -> Any:
    outcomes: queue.SimpleQueue[tuple[bool, Any]] = queue.SimpleQueue()

    def work() -> None:
        try:
            with _in_this_process(), _without_its_event_loop():
                outcome = invoke(**kwargs)
            outcomes.put((True, outcome))
        except BaseException as error:
            outcomes.put((False, error))
        finally:
            thread_done()

    context = contextvars.copy_context()
    threading.Thread(target=context.run, args=(work,), name="agentstate-timed-tool", daemon=True).start()
    try:
        returned, outcome = outcomes.get(timeout=seconds)
    except queue.Empty:
        raise TimedOut from None
    if returned:
        return outcome
    raise outcome


@contextmanager
def _in_this_process() -> Iterator[None]:
    """A process that the tool forks and that returns from it ends there: it does not go on with the run."""
    process, error = os.getpid(), None
    try:
        yield
    except BaseException as raised:
        error = raised
        raise
    finally:
        if os.getpid() != process:
            _end_process(error)


@contextmanager
def _without_its_event_loop() -> Iterator[None]:
    """An event loop that the tool leaves running in its thread keeps nobody behind it from the database: Django refuses
    to query one where a loop runs.
    """
    loop = asyncio._get_running_loop()
    try:
        yield
    finally:
        if asyncio._get_running_loop() is not loop:
            asyncio._set_running_loop(loop)


def _end_process(error: BaseException | None) -> NoReturn:
    """As Python ends one, but without what is to be done at the end of the process that it was forked from."""
    code: Any = error.code if isinstance(error, SystemExit) else int(error is not None)
    try:
        if error is not None and not isinstance(error, SystemExit):
            traceback.print_exception(error)
        elif code is not None and not isinstance(code, int):
            sys.stderr.write(f"{code}\n")
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    finally:
        os._exit(code & 0xFF if isinstance(code, int) else int(code is not None))
