"""Whether messages wait in the broker that no free thread of this process may run, so that a session gives way to them.

A new session, and what a person has asked for, wait in the queue `agentstate.queues.QUEUE`: a session gives way to
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

from agentstate.celery import app
from agentstate.queues import FOUND_QUEUE, LATER_QUEUE, QUEUE, QUEUES, URGENT_QUEUES
from agentstate.worker_threads import RunningTask, worker_threads

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.05
# A broker that has stopped answering holds up the run that asks for a second.
AWAY_SECONDS = 5.0
# So many wake-ups of sessions that the sweep has found, and of sessions that have given way, are kept.
MOST_KEPT = 1_000


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
    """Drop all but the newest wake-ups of sessions that can wait: called by the sweep, which finds those, too.

    While there are more sessions than threads nobody reads them. Never raises.
    """
    if settings.REDIS_URL:
        try:
            for name in FOUND_QUEUE, LATER_QUEUE:
                _client().ltrim(name, 0, MOST_KEPT - 1)
        except redis.RedisError as error:
            logger.warning("Old wake-ups were not dropped: %s", error)


def urgent_waits(task: RunningTask | None) -> bool:
    """Whether the session of this task has to give way to what must not wait, before its slice is over.

    It has to also where more sessions last than the worker has ordinary threads: for what does not wait yet.
    """
    threads = worker_threads()
    if not settings.REDIS_URL:
        return False
    if threads.none_is_free() and _queues().has_message(_read(QUEUE), if_refused=False):
        return True
    return threads.gives_way(task)


def others_wait() -> bool:
    """Whether the session that asks has to give way behind its slice.

    Without a broker that tells what waits (`manage.py up` without Redis), whenever all threads are busy.
    """
    threads = worker_threads()
    if not threads.only_reserved_are_free():
        return False
    if not settings.REDIS_URL:
        return True
    # What must not wait is about to be taken where a reserved thread is free.
    names = QUEUES if threads.none_is_free() else [name for name in QUEUES if name not in URGENT_QUEUES]
    return _queues().has_message(_read(*names), if_refused=True)


def _read(*names: str) -> list[str]:
    """Those of these queues that this worker reads: what waits in another one, another worker takes."""
    read = app.amqp.queues.consume_from
    return [name for name in names if name in read]
