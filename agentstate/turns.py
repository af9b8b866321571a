"""Threads that take turns: few work at once, so that they do not compete for the interpreter and for caches.

Twenty answers that begin together, as when twenty pages hear of news, take a fifth more CPU where each has a thread at
once, and all of them are late: Python runs one at a time, and each query of one makes it wait for all others. In turns
they are done in the order in which they came.

As long as this process takes less CPU than one thread could, those who work evidently wait, for the database or for a
lock, and others begin beside them, up to the number of threads. Others begin also beside who works for long: that may
be something which leaves the interpreter to others, like the check of a password.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

# One of two may wait for the database.
AT_ONCE = 2
# Who works longer than that is not waited for.
PATIENCE_SECONDS = 0.05
# How often it is looked whether others can begin, while there are any.
LOOK_SECONDS = 0.005
# So much of the time of one processor, and the interpreter is busy.
BUSY = 0.7

Clock = Callable[[], float]


@dataclass(eq=False, slots=True)
class _Job:
    call: Callable[[], Any]
    future: "Future[Any]" = field(default_factory=Future)
    began: float = 0.0


class Turns:
    """The turns of the threads of one executor.

    :param at_once: Jobs that work at the same time, besides those that have been found to wait, or to take long.
    :param clock: The time, in seconds.
    :param cpu: The CPU time of this process, in seconds.
    """

    def __init__(
        self,
        threads: ThreadPoolExecutor,
        *,
        at_once: int = AT_ONCE,
        clock: Clock = time.monotonic,
        cpu: Clock = time.process_time,
    ) -> None:
        self._threads = threads
        self._at_once = at_once
        self._clock = clock
        self._cpu = cpu
        self._lock = threading.Lock()  # of all that follows
        self._waiting: deque[_Job] = deque()
        self._working: set[_Job] = set()
        self._watched_by: asyncio.AbstractEventLoop | None = None
        self._looked = 0.0, 0.0

    def submit(self, call: Callable[[], Any]) -> "Future[Any]":
        """Call it in one of the threads when it is its turn. On an event loop only, which looks after who waits.

        Until then the future can be cancelled.
        """
        job = _Job(call)
        with self._lock:
            self._waiting.append(job)
            self._begin_or_refuse()
            self._watch()
        return job.future

    def _begin(self) -> _Job | None:
        """Begin what can begin now. If a job's turn has come and the threads have been shut down, it is returned."""
        while self._waiting and len(self._working) < self._at_once:
            job = self._waiting.popleft()
            job.began = self._clock()
            self._working.add(job)
            try:
                self._threads.submit(self._work, job)
            except RuntimeError:
                return job
        return None

    def _begin_or_refuse(self) -> None:
        while (job := self._begin()) is not None:
            self._working.discard(job)
            if job.future.set_running_or_notify_cancel():
                job.future.set_exception(RuntimeError("It was asked for after the shutdown of the threads."))

    def _work(self, job: _Job) -> None:
        """Do the job, and behind it what was taken before a shutdown."""
        following: _Job | None = job
        while following is not None:
            job = following
            try:
                if job.future.set_running_or_notify_cancel():
                    _call(job)
            finally:
                with self._lock:
                    self._working.discard(job)
                    following = self._begin()

    def _watch(self) -> None:
        """Have one event loop look again soon, while jobs wait."""
        if self._waiting and (self._watched_by is None or self._watched_by.is_closed()):
            self._watched_by = asyncio.get_running_loop()
            self._looked = self._clock(), self._cpu()
            self._watched_by.call_later(LOOK_SECONDS, self._look)

    def _look(self) -> None:
        with self._lock:
            self._watched_by = None
            now, (since, cpu_since) = self._clock(), self._looked
            if self._cpu() - cpu_since < BUSY * (now - since):
                self._working.clear()
            else:
                self._working = {job for job in self._working if now - job.began < PATIENCE_SECONDS}
            self._begin_or_refuse()
            self._watch()


def _call(job: _Job) -> None:
    try:
        result = job.call()
    except BaseException as error:  # it belongs to whoever waits for the future
        job.future.set_exception(error)
        del job  # which the traceback would keep, and with it the error itself
    else:
        job.future.set_result(result)
