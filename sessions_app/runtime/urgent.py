"""Whether a new session, or what a person has asked for, waits for a worker while all threads of this process are busy.

The wake-ups of both wait in the queue `agentstate.celery.QUEUE` of the broker until a worker is free. A session gives
way to one of them at the end of its step, before its slice is over.

The runs of a process ask the broker together, every `LOOK_SECONDS` at most and one of them at a time. A broker that
does not answer is left alone for `AWAY_SECONDS`: then sessions give way at the end of their slices only. Each process
counts for itself, so for one message a session of each may give way.
"""

import logging
import threading
from functools import cache
from time import monotonic
from typing import Any

import redis
from django.conf import settings

from agentstate.celery import LATER_QUEUE, QUEUE
from sessions_app.runtime.process import is_busy

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.25
AWAY_SECONDS = 30.0
# So many wake-ups of sessions that have given way are kept.
MOST_LATER = 1_000


class Urgent:
    """What waits in the broker, as of the last look. May be used by any thread; `waits` never raises."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._looking = threading.Lock()
        self._look_at = float("-inf")
        self._waiting = 0

    def waits(self) -> bool:
        """True once for each wake-up that waited at the last look. One that was not taken by the next counts again."""
        if not self._looking.acquire(blocking=False):
            return False
        try:
            if monotonic() >= self._look_at:
                self._look()
            if self._waiting:
                self._waiting -= 1
                return True
            return False
        finally:
            self._looking.release()

    def _look(self) -> None:
        self._waiting = 0
        try:
            self._waiting = int(self._client.llen(QUEUE))
        except redis.RedisError as error:
            logger.warning("The broker did not say what waits for a worker: %s", error)
            self._look_at = monotonic() + AWAY_SECONDS
        else:
            self._look_at = monotonic() + LOOK_SECONDS


@cache
def _client() -> Any:
    return redis.Redis.from_url(settings.REDIS_URL, socket_connect_timeout=1, socket_timeout=1)


@cache
def _of_this_process() -> Urgent:
    return Urgent(_client())


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
    """Whether the session that asks has to give way to what waits. False while a thread of this process is free."""
    return bool(settings.REDIS_URL) and is_busy() and _of_this_process().waits()
