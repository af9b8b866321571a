"""Publishes the agents of this worker, tries again until that has worked, and says from then on that it has them.

It runs as often as heartbeats do, in the process that a worker begins as: with prefork in the parent, which has no
heartbeat of its own and asks the database nothing else. So it returns the connection each time. A database that is away
or not migrated yet is a warning in the log, once for each kind of failure until it is there again.
"""

import logging
import os
import threading
from datetime import datetime

from django.conf import settings
from django.db import connection
from django.utils import timezone

from sessions_app.runtime.agents import publish_agents, renew_agents, withdraw_agents

logger = logging.getLogger(__name__)

# Held while the database is used: a child of prefork that is forked meanwhile would have locks of SQLite or of a driver
# that nobody releases in it, and would wait for ever.
_in_use = threading.Lock()
os.register_at_fork(before=_in_use.acquire, after_in_parent=_in_use.release, after_in_child=_in_use.release)


class Publisher:
    """
    :param every: Seconds between two beats, those between two heartbeats unless a test says otherwise.
    :param published: This process has published its agents as those of a worker already.
    """

    def __init__(self, every: float | None = None, *, published: bool = False) -> None:
        self._published = published
        self._every = settings.AGENTSTATE_HEARTBEAT_SECONDS if every is None else every
        self._told: set[str] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="publisher of agents", daemon=True)

    def start(self) -> None:
        """The first beat is over when this returns: a worker that is ready has published its agents."""
        self.beat()
        self._thread.start()

    def stop(self) -> None:
        """What it does on the database at this moment may outlast this."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(1)

    def beat(self, now: datetime | None = None) -> None:
        """Publish the agents, or say that this worker still has them. Never raises."""
        now = now or timezone.now()
        with _in_use:
            self._beat(now)

    def _beat(self, now: datetime) -> None:
        try:
            if not self._published:
                for problem in publish_agents(beat_at=now):
                    logger.error(problem)
                self._published = True
            else:
                if not renew_agents(now):
                    publish_agents(beat_at=now, restores=True)
                withdraw_agents(now)
            self._told.clear()
        except Exception as error:
            self._warn(error)
        finally:
            connection.close()

    def _warn(self, error: Exception) -> None:
        text = str(error).strip().partition("\n")[0]
        kind = f"{type(error).__name__}: {text}"
        if kind not in self._told:
            self._told.add(kind)
            logger.warning(
                "The agents of this worker could not be published, which is tried again every %g s: %s",
                self._every,
                kind,
            )

    def _run(self) -> None:
        while not self._stop.wait(self._every):
            self.beat()
