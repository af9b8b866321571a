"""Celery's tasks. A message is a wake-up: what is due stands in the database, so losing one loses nothing."""

import logging
import os
import socket
import threading
from uuid import UUID

from celery import shared_task
from django.conf import settings
from django.db import transaction
from kombu.exceptions import OperationalError

from agentstate.celery import SWEEP_QUEUE
from sessions_app import leases, searchindex, toolcache
from sessions_app.leases import Heartbeat

logger = logging.getLogger(__name__)
_heartbeats: dict[str, Heartbeat] = {}
_starting = threading.Lock()


@shared_task
def advance(session_id: str) -> None:
    """Drive a session for a slice of time; if there is more to do, let the others in first."""
    from sessions_app.worker import drive

    if drive(UUID(session_id), worker=worker_name(), heartbeat=heartbeat()) == "queued":
        wake(UUID(session_id))


@shared_task
def sweep() -> None:
    """Heal what lost its worker, and wake what is due. Sent every AGENTSTATE_SWEEP_SECONDS."""
    from sessions_app.actions import bulk

    for session_id in leases.sweep():
        # The next sweep finds what is still due, so these must not pile up while every worker is busy.
        _send(session_id, expires=settings.AGENTSTATE_SWEEP_SECONDS)
    for act_id in bulk.unattended():
        bulk_step(act_id)
    searchindex.update()
    toolcache.forget_expired()


@shared_task
def bulk_step(act_id: int) -> None:
    """Do some sessions of a bulk act; if there are more, let the others in first."""
    from sessions_app.actions import bulk

    if bulk.step(act_id):
        work_off(act_id)


def wake(session_id: UUID) -> None:
    """Tell the workers, once the present transaction is committed, that the session is due. Never fails."""
    transaction.on_commit(lambda: _send(session_id))


def work_off(act_id: int) -> None:
    """Let workers begin with a bulk act, or go on, once the present transaction is committed. Never fails."""
    transaction.on_commit(lambda: _send_bulk(act_id))


def worker_name() -> str:
    """This process, as sessions and `Worker` rows name it."""
    return f"{socket.gethostname()}:{os.getpid()}"[:200]


def heartbeat() -> Heartbeat:
    """This process's heartbeat: it begins at the first call, also after a fork, and lasts as long as the process."""
    name = worker_name()
    with _starting:
        if name not in _heartbeats:
            _heartbeats[name] = Heartbeat(name).__enter__()
        return _heartbeats[name]


def _send(session_id: UUID, expires: float | None = None) -> None:
    try:
        if expires is None:
            advance.delay(str(session_id))
        else:
            advance.apply_async((str(session_id),), expires=expires, queue=SWEEP_QUEUE)
    except (OperationalError, OSError) as error:
        logger.warning(
            "The wake-up of session %s was not sent: %s. The next sweep sends it again.", session_id, error
        )


def _send_bulk(act_id: int) -> None:
    try:
        bulk_step.delay(act_id)
    except (OperationalError, OSError) as error:
        logger.warning("Bulk act %s was not sent to a worker: %s. The sweep begins it.", act_id, error)
