"""Waking workers: sends a task by its name, and imports nothing of this project.

A message is only a wake-up. What is due is recorded in the database, so a message that is lost, or that cannot be sent
because the broker is unavailable, delays a session until the next sweep and loses nothing; that of `compare_later` is
not repeated. `wake`, `wake_bulk` and `compare_later` are called inside a transaction: the message is sent once that is
committed. No function raises for a broker that is unavailable or refuses the message.
"""

import logging
from collections.abc import Iterable
from typing import Any
from uuid import UUID

from celery import current_app
from django.db import transaction
from kombu.exceptions import KombuError
from redis import RedisError

logger = logging.getLogger(__name__)

ADVANCE = "sessions_app.tasks.advance"
BULK_BATCH = "sessions_app.tasks.bulk_batch"
COMPARE = "sessions_app.tasks.compare"
STAYS_QUEUED = "It stays queued, and the next sweep sends it again."
STAYS_AS_IT_IS = "Its similar sessions stay as they are until it has run again."


def wake(session_id: UUID, **options: Any) -> None:
    """Tell the workers, once the present transaction is committed, that the session is due.

    ``options`` are those of `send_advances`.
    """
    transaction.on_commit(lambda: send_advances([session_id], **options))


def wake_bulk(bulk_id: int, **options: Any) -> None:
    """Tell the workers, once the present transaction is committed, that the bulk action has items to do.

    ``options`` are those of `send_advances`.
    """
    transaction.on_commit(lambda: _send(BULK_BATCH, bulk_id, what=f"bulk action {bulk_id}", **options))


def compare_later(session_id: UUID) -> None:
    """Let a worker find, once the present transaction is committed, the sessions like this one, which is at rest."""
    about = f"session {session_id}"
    transaction.on_commit(lambda: _send(COMPARE, str(session_id), what=about, otherwise=STAYS_AS_IT_IS))


def send_advances(session_ids: Iterable[UUID], **options: Any) -> None:
    """Send the wake-ups of the sessions at once. ``options`` are those of Celery's ``send_task``: expires, queue.

    Where the broker is unavailable, it is not tried again for each of them.
    """
    for session_id in session_ids:
        if not _send(ADVANCE, str(session_id), what=f"session {session_id}", **options):
            return


def _send(
    task: str, argument: str | int, *, what: str, otherwise: str = STAYS_QUEUED, **options: Any
) -> bool:
    """:returns: Whether the broker took the message."""
    try:
        current_app.send_task(task, (argument,), **options)
    except (KombuError, RedisError, OSError) as error:
        logger.warning(
            "The wake-up of %s was not sent: %s. %s",
            what,
            str(error).rstrip("."),
            otherwise,
        )
        return False
    return True
