"""Tells web processes which sessions have changed, over the Redis server, for the pages that listen (`streams`).

A commit only notes its session; a thread of the process tells of it a moment later, with others in one message, so
that a step waits for nothing, and of its two commits the pages hear once. What is sent are ids, no content. Nothing is
told without REDIS_URL, and nothing raises: what is lost, pages find by the keep-alives of their streams.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from uuid import UUID

from django.conf import settings
from django.db import transaction

logger = logging.getLogger(__name__)

CHANNEL = "agentstate:news"
SEPARATOR = ","
# Before the id of a session of which nothing is committed, but more of a reply is written.
REPLY = "~"
# Of a session it is told so long after its first commit, and at most twice as long: a step whose call takes no time
# makes two commits within a few milliseconds, and pages would ask for news after each.
PAUSE_SECONDS = 0.025
AGAIN_SECONDS = 5.0
MOST_SESSIONS = 1000

Send = Callable[[Sequence[str]], object]


class NewsThread:
    """Sends which sessions have changed, in a thread of its own that begins with the first of them.

    :param connect: Called in the thread; returns what sends one message.
    """

    def __init__(self, connect: Callable[[], Send], clock: Callable[[], float] = time.monotonic) -> None:
        self._connect = connect
        self._clock = clock
        self._lock = threading.Condition()
        self._due: dict[str, float] = {}  # since when
        self._send: Send | None = None
        self._away_until = float("-inf")
        self._thread: threading.Thread | None = None

    def tell(self, session: str) -> None:
        """Send soon that the session has changed. Never waits, and never raises."""
        with self._lock:
            if len(self._due) < MOST_SESSIONS:
                self._due.setdefault(session, self._clock())
            self._lock.notify()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="agentstate-news", daemon=True)
                try:
                    self._thread.start()
                except RuntimeError:  # no more threads
                    self._thread = None

    def _run(self) -> None:
        while True:
            with self._lock:
                self._lock.wait_for(lambda: self._due)
            time.sleep(PAUSE_SECONDS)
            self.send()

    def send(self) -> None:
        """Send what has been due for long enough. Dropped while the server is away."""
        with self._lock:
            now = self._clock()
            due = [session for session, since in self._due.items() if now >= since + PAUSE_SECONDS]
            for session in due:
                del self._due[session]
        if not due or now < self._away_until:
            return
        try:
            self._send = self._send or self._connect()
            self._send(due)
        except Exception as error:  # of the client, of the network, or of an address that cannot be used
            self._away_until = self._clock() + AGAIN_SECONDS
            logger.warning("Open pages are not notified of changes, and poll instead: %s", error)


def are_told() -> bool:
    """Whether pages of this installation are told of changes at all."""
    return bool(settings.REDIS_URL) and settings.AGENTSTATE_STREAMS > 0


def session_changed(session_id: UUID) -> None:
    """Tell the pages of the session once the present transaction is committed."""
    if are_told():
        transaction.on_commit(lambda: tell(session_id), robust=True)


def tell(session_id: UUID) -> None:
    """Tell the pages of the session soon."""
    if are_told():
        _thread().tell(str(session_id))


def reply_grown(session_id: UUID) -> None:
    """Tell the pages of the session soon that the reply which is being written is longer; they need not hurry."""
    if are_told():
        _thread().tell(f"{REPLY}{session_id}")


def _connected() -> Send:
    import redis  # its client takes a while to import

    client = redis.Redis.from_url(settings.REDIS_URL, socket_connect_timeout=2, socket_timeout=2)
    return lambda session_ids: client.publish(CHANNEL, SEPARATOR.join(session_ids))


@lru_cache(maxsize=1)
def _thread() -> NewsThread:
    return NewsThread(_connected)


# The parent's thread does not exist in the child.
os.register_at_fork(after_in_child=_thread.cache_clear)
