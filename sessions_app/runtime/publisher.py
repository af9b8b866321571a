"""Publishes the agents of this worker when it starts, and tries again with each heartbeat until that has worked.

It runs in the process that a worker begins as: with prefork in the parent, which has no heartbeat of its own and asks
the database nothing else. So it returns the connection each time. A database that is away or not migrated yet is a
warning in the log, once for each kind of failure.
"""

import logging
import threading

from django.conf import settings
from django.db import connection

from sessions_app.runtime.agents import publish_agents

logger = logging.getLogger(__name__)


class Publisher:
    """
    :param every: Seconds between two attempts, those between two heartbeats unless a test says otherwise.
    """

    def __init__(self, every: float | None = None) -> None:
        self._every = settings.AGENTSTATE_HEARTBEAT_SECONDS if every is None else every
        self._told: set[str] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="publisher of agents", daemon=True)

    def start(self) -> None:
        """The first attempt is made before this returns: a worker that is ready has published its agents."""
        if not self.beat():
            self._thread.start()

    def stop(self) -> None:
        """What it does on the database at this moment may outlast this."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(1)

    def beat(self) -> bool:
        """One attempt. Never raises.

        :returns: Whether it has worked.
        """
        try:
            for problem in publish_agents():
                logger.error(problem)
        except Exception as error:
            self._warn(error)
            return False
        finally:
            connection.close()
        return True

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
            if self.beat():
                return
