"""The thread that keeps the mirror up to date: commits say which session has changed, and never wait for it.

What is to be done is a set of sessions, of limited size: a session that changes ten times while the server does not
answer is updated once, and one that does not fit is found by the sweep. The thread begins with the first change in its
process, also after a fork, and ends with the process; what it had not done by then is found by the sweep, too.
"""

import logging
import os
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from uuid import UUID

from django.conf import settings
from django.db import Error, close_old_connections, connections, transaction
from django.db.models.signals import post_delete, post_save

from sessions_app.models import Session
from sessions_app.watching import news

if TYPE_CHECKING:
    from sessions_app.mirror.sessions import MirrorSessions

logger = logging.getLogger(__name__)

MOST_SESSIONS = 10_000
# After a round the thread rests for so many times as long as that took, at least and at most for so long: what has
# changed meanwhile is written by fewer updates, and the runs of a busy process wait less for Python's lock.
PAUSE_TIMES = 3
PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 2.0
LONGEST_WAIT_SECONDS = 30.0
# How often an idle thread looks after its connection to the database.
IDLE_SECONDS = 30.0


class MirrorThread:
    """Updates the sessions that it is told of, in a thread of its own. A context manager.

    :param connect: Called in the thread: the client of the server takes a while to import.
    """

    def __init__(self, connect: "Callable[[], MirrorSessions]") -> None:
        self._connect = connect
        self._lock = threading.Condition()
        self._due: dict[UUID, None] = {}
        self._heals = False
        self._stopped = threading.Event()
        self._failures = 0
        self._thread = threading.Thread(target=self._run, name="mirror", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._stopped.set()
            self._lock.notify()
        self._thread.join()

    def update(self, session_id: UUID) -> None:
        """Update the session soon. Never blocks, and never raises."""
        with self._lock:
            if len(self._due) < MOST_SESSIONS:
                self._due[session_id] = None
                self._lock.notify()

    def heal(self) -> None:
        """Find soon what the mirror lacks. Never blocks, and never raises."""
        with self._lock:
            self._heals = True
            self._lock.notify()

    def _run(self) -> None:
        mirror = self._connect()
        try:
            while not self._stopped.is_set():
                with self._lock:
                    has_work = self._lock.wait_for(
                        lambda: self._due or self._heals or self._stopped.is_set(), IDLE_SECONDS
                    )
                    due, self._due = self._due, {}
                    heals, self._heals = self._heals, False
                close_old_connections()
                if has_work:
                    self._work(mirror, [*due], heals)
        finally:
            connections.close_all()

    def _work(self, mirror: "MirrorSessions", due: list[UUID], heals: bool) -> None:
        from sessions_app.mirror import healing
        from sessions_app.mirror.sessions import TOGETHER

        begun, wait = time.monotonic(), 0.0
        try:
            while due and not self._stopped.is_set():
                healing.update(mirror, due[:TOGETHER])
                del due[:TOGETHER]
            if heals and not self._stopped.is_set():
                healing.heal(mirror)
        except (*healing.UNAVAILABLE, Error) as error:
            if not self._failures:
                logger.warning("The mirror is late, since its server or the database failed: %s", error)
            self._failures += 1
            wait = min(LONGEST_WAIT_SECONDS, 0.5 * 2 ** min(self._failures, 10))
            for session_id in due:
                self.update(session_id)
            if heals:
                self.heal()
        except Exception:  # the next sweep looks again
            logger.exception("What the mirror lacks was not found.")
        else:
            if self._failures:
                logger.info("The mirror is written again.")
            self._failures = 0
        close_old_connections()
        rest = PAUSE_TIMES * (time.monotonic() - begun)
        self._stopped.wait(wait or min(max(rest, PAUSE_SECONDS), LONGEST_PAUSE_SECONDS))


_starting = threading.Lock()
_thread: MirrorThread | None = None


def session_changed(session_id: UUID) -> None:
    """Update the mirror of the session, and tell its open pages, once the present transaction is committed."""
    news.session_changed(session_id)
    if settings.AGENTSTATE_MIRROR:
        transaction.on_commit(lambda: _tell(lambda thread: thread.update(session_id)), robust=True)


def find_lost() -> None:
    """Find, in the thread, what the mirror lacks."""
    if settings.AGENTSTATE_MIRROR:
        _tell(MirrorThread.heal)


def connect() -> None:
    """Follow what is saved and deleted by the ORM. Statements that say nothing to it call `session_changed`."""
    post_save.connect(_on_change, sender=Session, dispatch_uid="mirror")
    post_delete.connect(_on_change, sender=Session, dispatch_uid="mirror")


def _on_change(instance: Session, **kwargs: Any) -> None:
    session_changed(instance.pk)


def _tell(what: Callable[[MirrorThread], None]) -> None:
    global _thread  # noqa: PLW0603 - one for the process
    with _starting:
        if _thread is None:
            _thread = MirrorThread(_configured).__enter__()
    what(_thread)


def _configured() -> "MirrorSessions":
    from sessions_app.mirror.sessions import MirrorSessions

    return MirrorSessions.configured()


def _after_fork() -> None:
    """The parent's thread does not exist in the child."""
    global _thread, _starting
    _thread, _starting = None, threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
