"""What is raised through the user's code and Haystack without being an `Exception`: by the engine, and by that code.

Haystack turns the exceptions of a tool into a message for the model, so the engine ends a run by `Interruption`s. The
user's code may raise a `BaseException` too: a command line's parser `SystemExit`, `asyncio` a `CancelledError`, an
extension in Rust its `PanicException`. It would pass everything that records how a call or a run has ended, and take
with it the thread or the process that serves other sessions. `contained` makes an ordinary exception of it.
"""

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from agentstate.durable.failures import describe

Result = TypeVar("Result")


class Interruption(BaseException):
    """The engine's own: it ends a call or a run from the inside."""


class NotAnException(Exception):
    """The user's code raised what cannot be passed on as it is: the `__cause__`. The text is its type with its message.

    It is no `Exception`, or a `StopIteration` in a thread for which a coroutine waits.
    """


def raised_by(error: Exception) -> BaseException:
    """What the user's code raised."""
    return error.__cause__ or error if isinstance(error, NotAnException) else error


@contextmanager
def contained() -> Iterator[None]:
    """Around code of the user's.

    A person's Ctrl+C passes, which Python raises in the main thread; so do the exit that a handler of a signal asks
    for, the cancellation of the task that runs the code, and what closes its coroutine.

    :raises NotAnException: in the place of anything else that is no `Exception`.
    """
    task = _current_task()
    try:
        yield
    except (Exception, Interruption):
        raise
    except BaseException as error:
        if _is_for_the_caller(error, task):
            raise
        raise NotAnException(describe(error)) from error


def in_thread(function: Callable[..., Result], *args: Any, **kwargs: Any) -> Result:
    """Call code of the user's in a thread for which a coroutine waits.

    :raises NotAnException: in the place of a `StopIteration`, which not every version of Python can pass on to a
        coroutine, so that it would wait forever; and of a `GeneratorExit`, which would close it.
    """
    try:
        return function(*args, **kwargs)
    except (StopIteration, GeneratorExit) as error:
        raise NotAnException(describe(error)) from error


def _is_for_the_caller(error: BaseException, task: "asyncio.Task[Any] | None") -> bool:
    """:param task: The one that has begun to run the code."""
    if isinstance(error, GeneratorExit):
        # No task closes a coroutine that it runs: Python does so when the event loop has gone.
        return task is not None and _current_task() is not task
    if isinstance(error, KeyboardInterrupt | SystemExit):
        # Python runs handlers in the main thread only.
        in_main_thread = threading.current_thread() is threading.main_thread()
        return in_main_thread and (isinstance(error, KeyboardInterrupt) or _is_of_a_signal(error))
    return isinstance(error, asyncio.CancelledError) and _is_being_cancelled()


def _is_being_cancelled() -> bool:
    task = _current_task()
    return task is not None and task.cancelling() > 0


def _current_task() -> "asyncio.Task[Any] | None":
    return asyncio.current_task() if asyncio._get_running_loop() is not None else None


def _is_of_a_signal(error: BaseException) -> bool:
    """Whether a handler of a signal raised it: it ends the process, as the child of a pool ends by SIGTERM."""
    handlers = {_code(signal.getsignal(number)) for number in signal.valid_signals()} - {None}
    place = error.__traceback__
    while place is not None:
        if place.tb_frame.f_code in handlers:
            return True
        place = place.tb_next
    return False


def _code(handler: object) -> object:
    return getattr(getattr(handler, "__func__", handler), "__code__", None)
