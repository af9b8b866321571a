"""Celery's pools of processes and of threads, each made to differ from Celery's own in one place.

`agentstate.celery` gives them to the worker.

The pool of processes outlives a child that dies while the broker is unavailable: when Celery 5.7 has connected to the
broker again, it watches every process of the pool anew, and one that died in the meantime ends the whole worker with
"Unrecoverable error: ValueError('file descriptor is None')".

The pool of threads says when a thread is free. A worker asks the broker for the next message only while a thread is,
and Celery 5.7 does not notice a thread that has become free until something else happens in its event loop, such as a
timer: for up to a second the thread does nothing, and messages wait.
"""

from concurrent.futures import Future
from typing import Any

from celery.concurrency.asynpool import AsynPool
from celery.concurrency.prefork import TaskPool as PreforkPool
from celery.concurrency.thread import TaskPool as CeleryThreadPool


class _ProcessPool(AsynPool):
    def _track_child_process(self, proc: Any, hub: Any) -> None:
        # None once its death was noticed. The pool replaces it by itself.
        if getattr(proc, "_sentinel_poll", proc) is not None:
            super()._track_child_process(proc, hub)  # type: ignore[misc]


class TaskPool(PreforkPool):
    """Celery's prefork pool. Celery finds it by its path, and so it has the name that Celery gives to pools."""

    Pool = _ProcessPool


class ThreadPool(CeleryThreadPool):
    """Celery's pool of threads."""

    # None where the worker has no event loop, as in `manage.py up` without Redis: it looks for messages all the time.
    _loop: Any = None

    def register_with_event_loop(self, loop: Any) -> None:
        """Called by Celery, each time that the worker has connected to the broker."""
        self._loop = loop

    def on_apply(self, *args: Any, **options: Any) -> Any:
        """Called by Celery to run a task."""
        applied = super().on_apply(*args, **options)
        # Celery counts the task as ended before the future is done.
        applied.f.add_done_callback(self._thread_is_free)
        return applied

    def _thread_is_free(self, task: Future[Any]) -> None:
        if self._loop is not None:
            self._loop.call_soon(_nothing)


def _nothing() -> None:
    """What the event loop is woken for: it asks for messages each time before it waits."""
