"""Celery's pool of processes, made to outlive a child that dies while the broker is unavailable.

`agentstate.celery` names it as the worker's pool. It differs from Celery's own in one place: when Celery 5.7 has
connected to the broker again, it watches every process of the pool anew, and one that died in the meantime ends the
whole worker with "Unrecoverable error: ValueError('file descriptor is None')".
"""

from typing import Any

from celery.concurrency.asynpool import AsynPool
from celery.concurrency.prefork import TaskPool as PreforkPool


class _ProcessPool(AsynPool):
    def _track_child_process(self, proc: Any, hub: Any) -> None:
        # None once its death was noticed. The pool replaces it by itself.
        if getattr(proc, "_sentinel_poll", proc) is not None:
            super()._track_child_process(proc, hub)  # type: ignore[misc]


class TaskPool(PreforkPool):
    """Celery's prefork pool. Celery finds it by its path, and so it has the name that Celery gives to pools."""

    Pool = _ProcessPool
