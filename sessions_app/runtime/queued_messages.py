"""Whether messages wait in the broker while all threads of this process are busy, so that a session gives way to them.

A new session, and what a person has asked for, wait in the queue `agentstate.celery.QUEUE`: a session gives way to
these at the end of its step, before its slice is over. Behind its slice it gives way to whatever waits in any queue.

The runs of a process ask the broker together, every `LOOK_SECONDS` at most and one of them at a time. A broker that is
away is left alone for `AWAY_SECONDS`, and sessions go on meanwhile: nobody would hear of one that gives way. Each
process counts for itself, so for one message a session of each may give way.
"""

import logging
import threading
from collections.abc import Sequence
from functools import cache
from time import monotonic
from typing import Any

import redis
from django.conf import settings

from agentstate.celery import LATER_QUEUE, QUEUE, QUEUES, app
from sessions_app.runtime.process import is_busy

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.05
# A broker that has stopped answering holds up the run that asks for a second.
AWAY_SECONDS = 5.0
# So many wake-ups of sessions that have given way are kept.
MOST_LATER = 1_000


class Queues:
    """What waits in the queues of the broker, as of the last look.

    May be used by any thread; `has_message` never raises.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self._looking = threading.Lock()
        self._look_at = float("-inf")
        self._waiting: dict[str, int] = {}
        self._refuses = False
        self._has_failed = False

    def has_message(self, names: Sequence[str], *, if_refused: bool) -> bool:
        """True once for each message that waited in one of these at the last look. One that was not taken by the next
        counts again.

        :param if_refused: What is answered while the broker is there and does not say what waits.
        """
        if not self._looking.acquire(blocking=False):
            return False
        try:
            if monotonic() >= self._look_at:
                self._look()
            if self._refuses:
                return if_refused
            for name in names:
                if self._waiting.get(name):
                    self._waiting[name] -= 1
                    return True
            return False
        finally:
            self._looking.release()

    def _look(self) -> None:
        self._waiting = {}
        try:
            with self._client.pipeline(transaction=False) as pipeline:
                for name in QUEUES:
                    pipeline.llen(name)
                self._waiting = dict(zip(QUEUES, pipeline.execute(), strict=True))
        except redis.RedisError as error:
            if not self._has_failed:
                logger.warning("The broker does not say what waits for a worker: %s", error)
            self._has_failed, self._refuses = True, isinstance(error, redis.ResponseError)
            self._look_at = monotonic() + AWAY_SECONDS
        else:
            self._has_failed = self._refuses = False
            self._look_at = monotonic() + LOOK_SECONDS


@cache
def _client() -> Any:
    return redis.Redis.from_url(settings.REDIS_URL, socket_connect_timeout=1, socket_timeout=1)


@cache
def _queues() -> Queues:
    return Queues(_client())


def forget_old_wake_ups() -> None:
    """Drop all but the newest wake-ups of sessions that have given way: called by the sweep, which finds those, too.

    While there are more sessions than threads nobody reads them. Never raises.
    """
    if settings.REDIS_URL:
        try:
            _client().ltrim(LATER_QUEUE, 0, MOST_LATER - 1)
        except redis.RedisError as error:
            logger.warning("Old wake-ups were not dropped: %s", error)


def urgent_waits() -> bool:
    """Whether the session that asks has to give way to what a person waits for, before its slice is over."""
    return bool(settings.REDIS_URL) and is_busy() and _queues().has_message(_read(QUEUE), if_refused=False)


def others_wait() -> bool:
    """Whether the session that asks has to give way behind its slice.

    Without a broker that tells what waits (`manage.py up` without Redis), whenever all threads are busy.
    """
    return is_busy() and (not settings.REDIS_URL or _queues().has_message(_read(*QUEUES), if_refused=True))


def _read(*names: str) -> list[str]:
    """Those of these queues that this worker reads: what waits in another one, another worker takes."""
    read = app.amqp.queues.consume_from
    return [name for name in names if name in read]
