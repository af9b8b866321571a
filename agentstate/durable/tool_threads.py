"""The threads in which durable runs call tools: they are kept, and later calls of any run use them again.

Haystack starts a thread for each call of each step. The standard library starts the threads of all executors under one
lock, which it holds until the new thread runs: in a process with many sessions, whose threads wait for each other to
compute, they all wait for that lock as well. docs/performance.md has what this costs.

`install` replaces the executor of Haystack's loop. Outside a durable run that stays the standard library's.
"""

import atexit
import os
import queue
import threading
from collections import deque
from collections.abc import Callable
from concurrent import futures
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from haystack.components.agents import tool_calling

from agentstate.durable import run_context

Result = TypeVar("Result")
Work = Callable[[], None]
Inbox = queue.SimpleQueue[Work]


def install() -> None:
    """May be called again. A Haystack that has its executor from elsewhere starts its own threads, as without this."""
    tool_calling.ThreadPoolExecutor = _executor  # type: ignore[misc, assignment]


class KeptThreads:
    """Threads that wait for work when theirs is done. There are as many as have ever worked at once: no work waits for
    a thread, which other work may hold that waits for it.

    Not a ThreadPoolExecutor of the standard library: its count of idle threads is not exact in Python 3.12 and 3.13, so
    that it starts too many or too few.
    """

    def __init__(self) -> None:
        self.begin_again()

    def begin_again(self) -> None:
        """A process that was forked has none of its parent's threads, and their lock may be held."""
        self._changed = threading.Condition()
        self._idle: list[Inbox] = []
        self._working = 0

    def do(self, work: Work) -> None:
        """
        :param work: It raises nothing.
        :raises RuntimeError: if no thread can be started; the work is not done then.
        """
        with self._changed:
            inbox = self._idle.pop() if self._idle else None
        if inbox is not None:
            inbox.put(work)
            return
        inbox = queue.SimpleQueue()
        inbox.put(work)
        threading.Thread(target=self._serve, args=(inbox,), name="agentstate-tool", daemon=True).start()

    def wait(self) -> None:
        """Until no work is being done."""
        with self._changed:
            self._changed.wait_for(lambda: not self._working)

    def _serve(self, inbox: Inbox) -> None:
        while True:
            work = inbox.get()
            with self._changed:
                self._working += 1
            work()
            del work
            with self._changed:
                self._working -= 1
                self._idle.append(inbox)
                if not self._working:
                    self._changed.notify_all()


class StepThreads(Executor):
    """Calls functions in kept threads, a number of them at once at most. They begin in their order, as they do where
    each has a thread started for it.

    :param most: That number.
    :param behind: Called in the thread behind each function.
    :raises ValueError: if the number is below 1.
    """

    def __init__(self, most: int, behind: Callable[[], None] | None = None) -> None:
        if most < 1:
            raise ValueError("At least one function must be allowed to run.")
        self._most, self._behind = most, behind
        self._lock = threading.Lock()
        # Held from when a function is given to a thread until that begins with it.
        self._beginning = threading.Lock()
        self._threads = 0
        self._waiting: deque[Work] = deque()
        self._futures: list[Future[Any]] = []
        self._failed = False

    def submit(self, fn: Callable[..., Result], /, *args: Any, **kwargs: Any) -> Future[Result]:
        """
        :raises RuntimeError: if no thread can be started. The function is not called then, and no other one is taken.
        """
        future: Future[Result] = Future()
        work = partial(_call, future, partial(fn, *args, **kwargs), self._behind)
        with self._lock:
            if self._failed:
                raise RuntimeError(
                    "No thread could be started for an earlier function, so that no other one is taken."
                )
            self._futures.append(future)
            if self._threads == self._most:
                self._waiting.append(work)
                return future
            self._threads += 1
        try:
            self._beginning.acquire()
            _kept.do(partial(self._work, work))
        except BaseException:
            # Interrupted, the function may run already; then it is waited for.
            self._failed = True
            if future.cancel():
                self._futures.remove(future)
            raise
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Wait until every function has been called; the threads stay."""
        if wait:
            futures.wait(self._futures)
            self._futures.clear()

    def _work(self, work: Work) -> None:
        self._beginning.release()
        while True:
            work()
            del work
            with self._lock:
                if not self._waiting:
                    self._threads -= 1
                    return
                work = self._waiting.popleft()


def _call(future: Future[Any], function: Callable[[], Any], behind: Callable[[], None] | None) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        try:
            result = function()
        finally:
            if behind is not None:
                behind()
    except BaseException as error:
        future.set_exception(error)
        # Else the error, which holds the frames of this thread, and the future would hold each other.
        del future, function, behind
    else:
        future.set_result(result)


def _executor(max_workers: int | None = None, **options: Any) -> Executor:
    run = run_context.current()
    if max_workers is None or options or run is None:
        return ThreadPoolExecutor(max_workers, **options)
    return StepThreads(max_workers, run.journal.thread_done)


_kept = KeptThreads()


os.register_at_fork(after_in_child=_kept.begin_again)
# As with the threads of the standard library, the process ends when the calls that run have.
atexit.register(_kept.wait)
