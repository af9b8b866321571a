"""Celery's pools of processes and of threads, changed in a few places.

`agentstate.celery` gives them to the worker.

The pool of processes outlives a child that dies while the broker is unavailable: when Celery 5.7 has connected to the
broker again, it watches every process of the pool anew, and one that died in the meantime ends the whole worker with
"Unrecoverable error: ValueError('file descriptor is None')".

The pool of threads has `AGENTSTATE_RESERVED_THREADS` threads more than `-c` says, for what must not wait
(`agentstate.worker_threads`). It also says when a thread is free. A worker asks the broker for the next message only
while a thread is, and Celery 5.7 does not notice a thread that has become free until something else happens in its
event loop, such as a timer: for up to a second the thread does nothing, and messages wait.
"""

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

from celery import Celery
from celery.concurrency.asynpool import AsynPool
from celery.concurrency.prefork import TaskPool as PreforkPool
from celery.concurrency.thread import TaskPool as CeleryThreadPool
from django.conf import settings

from agentstate.queues import URGENT_QUEUES
from agentstate.worker_threads import RunningTask, WorkerThreads, use


class _ProcessPool(AsynPool):
    def _track_child_process(self, proc: Any, hub: Any) -> None:
        # None once its death was noticed. The pool replaces it by itself.
        if getattr(proc, "_sentinel_poll", proc) is not None:
            super()._track_child_process(proc, hub)  # type: ignore[misc]


class TaskPool(PreforkPool):
    """Celery's prefork pool. Celery finds it by its path, and so it has the name that Celery gives to pools."""

    Pool = _ProcessPool


class ThreadPool(CeleryThreadPool):
    """Celery's pool of threads.

    :param limit: So many threads that run any task.
    """

    # None where the worker has no event loop, as in `manage.py up` without Redis: it looks for messages all the time.
    _loop: Any = None

    def __init__(self, limit: int, *, app: Celery, **options: Any) -> None:
        self._threads = WorkerThreads(limit, _reserved(app))
        super().__init__(limit + self._threads.reserved, app=app, **options)

    def on_start(self) -> None:
        """Called by Celery before the worker asks for messages."""
        use(self._threads)

    def on_stop(self) -> None:
        """Called by Celery; returns when the tasks have ended."""
        super().on_stop()
        use(WorkerThreads())

    def register_with_event_loop(self, loop: Any) -> None:
        """Called by Celery, each time that the worker has connected to the broker."""
        self._loop = loop

    def on_apply(self, target: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Called by Celery to run a task."""
        # Not known by its id: a message that is delivered twice is two tasks with one id.
        task = self._threads.begin()
        applied = super().on_apply(partial(self._run, task, target), *args, **options)
        # Celery counts the task as ended before the future is done.
        applied.f.add_done_callback(partial(self._thread_is_free, task))
        return applied

    def _run(self, task: RunningTask, target: Callable[..., Any], *args: Any, **options: Any) -> Any:
        self._threads.run_here(task)
        return target(*args, **options)

    def _thread_is_free(self, task: RunningTask, future: Future[Any]) -> None:
        self._threads.end(task)
        if self._loop is not None:
            self._loop.call_soon(_nothing)


def _reserved(app: Celery) -> int:
    """Of a worker that reads what must not wait and other queues, too. Without Redis the queues take turns."""
    reads = set(app.amqp.queues.consume_from)
    reads_both = not reads.isdisjoint(URGENT_QUEUES) and not reads <= URGENT_QUEUES
    return settings.AGENTSTATE_RESERVED_THREADS if settings.REDIS_URL and reads_both else 0


def _nothing() -> None:
    """What the event loop is woken for: it asks for messages each time before it waits."""
