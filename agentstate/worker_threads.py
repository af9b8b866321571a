"""The threads of this process that run tasks in a worker with `-P threads`, some of which are reserved.

The worker runs as many tasks at once as `-c` says, and in its reserved threads more of those that must not wait: the
sweep, new sessions, and what people have asked for (`agentstate.queues.URGENT_QUEUES`). While only reserved threads are
free, it asks the broker for nothing else. No thread is reserved by itself: their number is. Where more sessions than
`-c` says have run for a second, so many of them give way at the end of their steps.

`agentstate.worker_pool` says what runs; the runs of sessions, and the connection to the broker, read. May be used by
any thread.
"""

import threading
from dataclasses import dataclass
from time import monotonic

# A session that has run for less may end soon, as many a new one does: no other gives way for it.
SHORT_SECONDS = 1.0


@dataclass(eq=False, slots=True)
class RunningTask:
    """
    lasts_since: when it began, if it runs a session; other tasks are short.
    leaves: It was told to give way.
    """

    lasts_since: float | None = None
    leaves: bool = False


class WorkerThreads:
    """
    ordinary: so many threads run any task; 0 where the threads are not known, as in a process of a pool.
    reserved: so many run only what must not wait.
    """

    def __init__(self, ordinary: int = 0, reserved: int = 0) -> None:
        self.ordinary = ordinary
        self.reserved = reserved
        self._lock = threading.Lock()
        self._running: set[RunningTask] = set()
        self._here = threading.local()

    def begin(self) -> RunningTask:
        """A thread is given a task."""
        task = RunningTask()
        self._running.add(task)
        return task

    def end(self, task: RunningTask) -> None:
        """The thread is free."""
        self._running.discard(task)

    def run_here(self, task: RunningTask) -> None:
        """This thread runs the task."""
        self._here.task = task

    def session_here(self) -> RunningTask | None:
        """The task that this thread runs, from now on known to run a session; None if it is not one of the worker's."""
        task: RunningTask | None = getattr(self._here, "task", None)
        if task is not None:
            task.lasts_since = monotonic()
        return task

    def none_is_free(self) -> bool:
        """Whether a task that must not wait would have to; True where the threads are not known."""
        return len(self._running) >= self.ordinary + self.reserved

    def only_reserved_are_free(self) -> bool:
        """Whether any other task would have to wait; True also if none is free at all."""
        return len(self._running) >= self.ordinary

    def gives_way(self, task: RunningTask | None) -> bool:
        """Whether the session of this task has to give way, so that a reserved thread is free again.

        Says so for no more sessions than there are too many, and again for the same ones while too many tasks run.
        """
        if task is None or not self.reserved or len(self._running) <= self.ordinary:
            return False
        with self._lock:
            if not task.leaves:
                begun_before = monotonic() - SHORT_SECONDS
                lasting = sum(
                    1
                    for other in tuple(self._running)
                    if not other.leaves
                    and other.lasts_since is not None
                    and other.lasts_since <= begun_before
                )
                task.leaves = lasting > self.ordinary
            return task.leaves


class _OfThisProcess:
    """Holds the threads that this process has now: a worker that starts in it brings others."""

    def __init__(self) -> None:
        self.threads = WorkerThreads()


_now = _OfThisProcess()


def worker_threads() -> WorkerThreads:
    """Those of this process."""
    return _now.threads


def use(threads: WorkerThreads) -> None:
    """From now on these are the threads of this process: called when its worker starts, and ends."""
    _now.threads = threads
