"""The threads in which durable runs call tools: they are kept, and later calls of any run use them again.

Haystack starts a thread for each call of each step. The standard library starts the threads of all executors under one
lock, which it holds until the new thread runs: in a process with many sessions, whose threads wait for each other to
compute, they all wait for that lock as well. docs/performance.md has what this costs.

While no other call of its step runs, a call is made in the thread of its run, which would only wait for it. Not where a
signal would interrupt the tool, or the process would end before it: in the main thread and in daemon threads.

`install` replaces the executor of Haystack's loop. Outside a durable run that stays the standard library's.
"""

import asyncio
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
    :param behind: Called in the kept thread when a function has ended.
    :param here: Calls what it is given, in the same thread. With it, a function that is submitted while no other one
        runs is kept back. When the next one is submitted, both begin in kept threads. When its result is asked for, or
        at the shutdown, ``here`` calls it in the thread that asks.
    :raises ValueError: if the number is below 1.
    """

    def __init__(
        self,
        most: int,
        behind: Callable[[], None] | None = None,
        here: Callable[[Work], None] | None = None,
    ) -> None:
        if most < 1:
            raise ValueError("At least one function must be allowed to run.")
        self._most, self._behind, self._here = most, behind, here
        self._lock = threading.Lock()
        # Held from when a function is given to a thread until that begins with it.
        self._beginning = threading.Lock()
        self._threads = 0
        # What is kept back: one function, or none.
        self._kept_back: list[tuple[Future[Any], Callable[[], Any]]] = []
        self._waiting: deque[Work] = deque()
        self._futures: list[Future[Any]] = []
        self._failed = False

    def submit(self, fn: Callable[..., Result], /, *args: Any, **kwargs: Any) -> Future[Result]:
        """
        :raises RuntimeError: if no thread can be started, for this function or for the one that was kept back. It is
            not called then, and no other one is taken.
        """
        future: Future[Result] = Future()
        function = partial(fn, *args, **kwargs)
        with self._lock:
            if self._failed:
                raise RuntimeError(
                    "No thread could be started for an earlier function, so that no other one is taken."
                )
            before, self._kept_back = self._kept_back, []
            if self._here is not None and not before and not self._threads:
                future = _KeptBack(partial(self._call_kept_back, self._here))
                self._kept_back = [(future, function)]
                self._futures.append(future)
                return future
        for kept_back in before:
            self._begin(*kept_back)
        self._futures.append(future)
        self._begin(future, function)
        return future

    def _begin(self, future: Future[Any], function: Callable[[], Any]) -> None:
        work = partial(_call, future, function, self._behind)
        with self._lock:
            if self._threads == self._most:
                self._waiting.append(work)
                return
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

    def _call_kept_back(self, here: Callable[[Work], None]) -> None:
        if kept_back := self._no_longer_kept_back():
            try:
                here(partial(_call_taken, kept_back))
            finally:
                for future, _ in kept_back:  # it was not called
                    future.cancel()
                    self._futures.remove(future)

    def _no_longer_kept_back(self) -> list[tuple[Future[Any], Callable[[], Any]]]:
        with self._lock:
            kept_back, self._kept_back = self._kept_back, []
        return kept_back

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Wait until every function has been called, the one that is kept back by this thread; the threads stay.

        :param wait: If not, that one begins in a kept thread.
        """
        if self._here is not None and wait:
            self._call_kept_back(self._here)
        for kept_back in self._no_longer_kept_back():
            self._begin(*kept_back)
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


class _KeptBack(Future[Any]):
    """The future of a function that is kept back until its result is asked for. A time limit does not hold for the
    thread in which it is called.

    :param begin: Calls the function, unless it has begun.
    """

    def __init__(self, begin: Callable[[], None]) -> None:
        super().__init__()
        self._begin = begin

    def result(self, timeout: float | None = None) -> Any:
        try:
            self._begin()
            return super().result(timeout)
        finally:
            # Else an error, which holds this frame, and the future that has the error would hold each other.
            del self

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._begin()
        return super().exception(timeout)

    def add_done_callback(self, fn: Callable[[Future[Any]], object]) -> None:
        super().add_done_callback(fn)
        self._begin()


def _call_taken(taken: list[tuple[Future[Any], Callable[[], Any]]]) -> None:
    # Taken out of the list: a traceback keeps the variables of all functions that have called.
    _call(*taken.pop(), None)


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
    here = getattr(run.journal, "call_here", None) if _one_by_one and _may_call_here() else None
    return StepThreads(max_workers, run.journal.thread_done, here)


def _may_call_here() -> bool:
    """Whether this thread is like those that are kept: no signal interrupts it, the process does not end before it, and
    a tool may run an event loop in it.
    """
    thread = threading.current_thread()
    if thread is threading.main_thread() or thread.daemon:
        return False
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return True
    return False


def _asks_each_for_its_result() -> bool:
    """Whether Haystack asks each future for its result, one after the other. A version that waits for several at once
    would wait for one whose function has not begun.
    """
    code = getattr(getattr(tool_calling, "_run_tool", None), "__code__", None)
    names = set(code.co_names) if code is not None else set()
    return "result" in names and not names & {"wait", "as_completed", "add_done_callback", "futures"}


_kept = KeptThreads()
_one_by_one = _asks_each_for_its_result()


os.register_at_fork(after_in_child=_kept.begin_again)
# As with the threads of the standard library, the process ends when the calls that run have.
atexit.register(_kept.wait)
