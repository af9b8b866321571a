"""Waking workers: sends a task by its name, and imports nothing of this project.

A message is only a wake-up. What is due is recorded in the database, so a message that is lost, or that cannot be sent
because the broker is unavailable, delays a session until the next sweep and loses nothing. `wake` and `wake_bulk` are
called inside a transaction: the message is sent once that is committed. No function raises for a broker that is
unavailable or refuses the message.
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


def send_advances(session_ids: Iterable[UUID], **options: Any) -> None:
    """Send the wake-ups of the sessions at once. ``options`` are those of Celery's ``send_task``: expires, queue.

    Where the broker is unavailable, it is not tried again for each of them.
    """
    for session_id in session_ids:
        if not _send(ADVANCE, str(session_id), what=f"session {session_id}", **options):
            return


def _send(task: str, argument: str | int, *, what: str, **options: Any) -> bool:
    """:returns: Whether the broker took the message."""
    try:
        current_app.send_task(task, (argument,), **options)
    except (KombuError, RedisError, OSError) as error:
        logger.warning(
            "The wake-up of %s was not sent: %s. It stays queued, and the next sweep sends it again.",
            what,
            str(error).rstrip("."),
        )
        return False
    return True
