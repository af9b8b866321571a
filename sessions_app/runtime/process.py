"""This worker process: its name, its heartbeat, its agents, and the handlers of Celery's signals.

Celery's signals are connected when `sessions_app.tasks` is imported, which every Celery worker does.
"""

import gc
import logging
import os
import socket
import threading
from functools import cache
from typing import Any

from celery import bootsteps, signals
from celery.concurrency.prefork import TaskPool as PreforkPool
from django.conf import settings
from django.db import Error, connection

from agentstate.celery import app
from sessions_app.runtime.kept_contexts import kept_contexts
from sessions_app.runtime.leases import Heartbeat, sign_off
from sessions_app.runtime.publisher import Publisher
from sessions_app.runtime.stopping import stopping
from sessions_app.unavailable import in_one_line

logger = logging.getLogger(__name__)
_heartbeats: dict[str, Heartbeat] = {}
# By the name of the process: a child of prefork that is forked later has those of its parent.
_publishers: dict[str, Publisher] = {}
_starting = threading.Lock()


def worker_name() -> str:
    """The name of this process in sessions and `Worker` rows."""
    return f"{socket.gethostname()}:{os.getpid()}"[:200]


def heartbeat() -> Heartbeat:
    """This process's heartbeat. It starts with the first call, also after a fork, and lasts as long as the process."""
    name = worker_name()
    with _starting:
        if name not in _heartbeats:
            _heartbeats[name] = Heartbeat(name, also=lambda: kept_contexts().drop_old()).__enter__()
        return _heartbeats[name]


@cache
def spare_imports() -> None:
    """Leave what this process has imported out of garbage collections from now on: it lasts as long as the process.

    Haystack makes a full collection take a tenth of a second, and taking up a long session brings one about.
    """
    gc.freeze()


def start_publishing(*, published: bool = False) -> None:
    """Let this process, which a worker begins as, publish its agents and say that it has them, until it ends.

    :param published: It has published them as those of a worker already.
    """
    publisher = _publishers[worker_name()] = Publisher(published=published)
    publisher.start()


@signals.worker_ready.connect
def _publish_agents(**kwargs: Any) -> None:
    """Web processes show the agents that workers publish."""
    if _runs_demo_agents_unasked():
        logger.warning(
            "AGENTSTATE_AGENTS is not set, so this worker has the demo agents only. "
            "Set it to the modules that register your agents."
        )
    start_publishing()


def _runs_demo_agents_unasked() -> bool:
    """Whether the agents are those of the default, which suits a desk on one machine that is tried out."""
    tried_out = connection.vendor == "sqlite" and not settings.REDIS_URL
    return (
        settings.AGENTSTATE_AGENTS == ["agentstate.demo.agents"]
        and "AGENTSTATE_AGENTS" not in os.environ
        and not tried_out
    )


@signals.worker_process_init.connect
def _start_heartbeat(**kwargs: Any) -> None:
    """An idle worker counts as online, too. Celery sends this in each process of a pool, after the fork."""
    heartbeat()


@signals.worker_ready.connect
def _start_heartbeat_of_threads(sender: Any, **kwargs: Any) -> None:
    """A pool of threads runs sessions in this very process; the parent of a pool of processes runs none."""
    if not isinstance(sender.pool, PreforkPool):
        heartbeat()


# A process that a tool forks has the handlers of its parent, and its shared memory.
_OWN_PID = os.getpid()


@signals.worker_shutting_down.connect
def _let_sessions_give_way(**kwargs: Any) -> None:
    """The worker got a signal. It hears of it here only where it runs a session by itself, in a pool of kind solo."""
    if os.getpid() == _OWN_PID:
        stopping.set()


class LetSessionsGiveWay(bootsteps.StartStopStep):
    """The first thing that a worker does when it ends, for whatever reason: then it waits for its tasks."""

    requires = ("celery.worker.components:Pool",)

    def close(self, worker: Any) -> None:
        """Celery calls it before it stops any part of the worker."""
        stopping.set()


app.steps["worker"].add(LetSessionsGiveWay)


@signals.worker_process_shutdown.connect
@signals.worker_shutdown.connect
def _sign_off(**kwargs: Any) -> None:
    """The process has finished its sessions and ends.

    Celery sends the first signal in each process of a pool, the second where the worker's own threads run sessions.
    """
    name = worker_name()
    if (publisher := _publishers.pop(name, None)) is not None:
        publisher.stop()
    with _starting:
        beating = _heartbeats.pop(name, None)
    if beating is None:
        return
    # Not before: a heartbeat behind it would say that the worker is online.
    beating.__exit__(None, None, None)
    try:
        sign_off(name)
    except Error as error:
        logger.warning("Worker %s ends without having said so: %s", name, in_one_line(error))
    # The thread of a worker in `manage.py up` ends with this.
    connection.close()
