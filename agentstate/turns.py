"""Threads that take turns: few work at once, so that they do not compete for the interpreter and for caches.

Twenty answers that begin together, as when twenty pages hear of news, take a fifth more CPU where each has a thread at
once, and all of them are late: Python runs one at a time, and each query of one makes it wait for all others. In turns
they are done in the order in which they came. Whoever waits for the database for long, as for a lock, does not count as
working any more, so there may be many such.
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
PATIENCE_SECONDS = 0.05


@dataclass(eq=False, slots=True)
class _Job:
    call: Callable[[], Any]
    future: "Future[Any]" = field(default_factory=Future)
    began: float = 0.0


class Turns:
    """The turns of the threads of one executor.

    :param at_once: Jobs that work at the same time, besides those that have done so for more than ``patience`` seconds.
    """

    def __init__(
        self, threads: ThreadPoolExecutor, *, at_once: int = AT_ONCE, patience: float = PATIENCE_SECONDS
    ) -> None:
        self._threads = threads
        self._at_once = at_once
        self._patience = patience
        self._lock = threading.Lock()  # of all that follows
        self._waiting: deque[_Job] = deque()
        self._working: set[_Job] = set()
        self._watched_by: asyncio.AbstractEventLoop | None = None

    def submit(self, call: Callable[[], Any]) -> "Future[Any]":
        """Call it in one of the threads when it is its turn. On an event loop only, which watches for slow jobs.

        Until then the future can be cancelled.
        """
        job = _Job(call)
        with self._lock:
            self._waiting.append(job)
            self._begin()
            self._watch()
        return job.future

    def _begin(self) -> None:
        while self._waiting and len(self._working) < self._at_once:
            job = self._waiting.popleft()
            job.began = time.monotonic()
            self._working.add(job)
            self._threads.submit(self._work, job)

    def _work(self, job: _Job) -> None:
        try:
            if job.future.set_running_or_notify_cancel():
                _call(job)
        finally:
            with self._lock:
                self._working.discard(job)
                self._begin()

    def _watch(self) -> None:
        """Have somebody look after slow jobs while others wait."""
        loop = asyncio.get_running_loop()
        if self._waiting and self._watched_by is not loop:
            self._watched_by = loop
            loop.call_later(self._patience, self._look)

    def _look(self) -> None:
        with self._lock:
            self._watched_by = None
            since = time.monotonic() - self._patience
            self._working = {job for job in self._working if job.began > since}
            self._begin()
            self._watch()


def _call(job: _Job) -> None:
    try:
        result = job.call()
    except BaseException as error:  # it belongs to whoever waits for the future
        job.future.set_exception(error)
    else:
        job.future.set_result(result)
