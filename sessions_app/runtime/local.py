"""A Celery worker, the sweep and the web server in threads of one process: the parts of `manage.py up`.

Each is a context manager or a call that the main thread leaves within a few seconds. Work that does not end
by then is interrupted as by a crash, which loses nothing: the next start resumes it from the journal.
"""

import logging
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from celery.worker import WorkController, state
from django.conf import settings
from django.db import close_old_connections
from kombu.exceptions import OperationalError
from waitress.server import create_server

from agentstate.celery import app

logger = logging.getLogger(__name__)

SESSIONS_AT_ONCE = 4
REQUESTS_AT_ONCE = 8
GRACE_SECONDS = 3.5


class PortTaken(Exception):
    pass


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. It accepts connections at once; `serve` answers them.

    :raises PortTaken: if another process uses the port, or this one may not use it.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=128)
    except OSError as error:
        raise PortTaken(f"Cannot listen on {host} port {port}: {os.strerror(error.errno or 0)}.") from error


def serve(listening: socket.socket, wsgi: Callable[..., Any]) -> None:
    """Answer requests until SystemExit or KeyboardInterrupt is raised in this thread; then finish those begun."""
    behind_proxy = (
        {
            "trusted_proxy": "*",
            "trusted_proxy_count": settings.TRUSTED_PROXIES,
            "trusted_proxy_headers": "x-forwarded-proto x-forwarded-for",
        }
        if settings.TRUSTED_PROXIES
        else {}
    )
    create_server(
        wsgi,
        sockets=[listening],
        threads=REQUESTS_AT_ONCE,
        ident=None,
        clear_untrusted_proxy_headers=True,
        # Beyond what the desk refuses with a page, the server refuses without reading it.
        max_request_body_size=2 * settings.DATA_UPLOAD_MAX_MEMORY_SIZE,
        **behind_proxy,
    ).run()


class _Worker(WorkController):
    """Celery's worker without its command line: no signal handlers, no log set-up, no fork."""

    hostname: str

    def __init__(self) -> None:
        super().__init__(
            app=app,
            pool="threads",
            concurrency=SESSIONS_AT_ONCE,
            loglevel=logging.WARNING,
            without_gossip=True,
            without_mingle=True,
            without_heartbeat=True,
        )


@contextmanager
def worker() -> Iterator[threading.Thread]:
    """Run sessions in this process. On leaving, no step starts, and steps that run have GRACE_SECONDS to end.

    Yields the worker's thread. It is still alive afterwards if a step did not end in time.
    """
    from sessions_app.runtime.worker import stopping

    logging.getLogger("celery").setLevel(logging.WARNING)
    stopping.clear()
    state.should_stop = None
    controller = _Worker()
    thread = threading.Thread(target=controller.start, name="worker", daemon=True)
    thread.start()
    try:
        yield thread
    finally:
        stopping.set()
        # Celery's loop ends in its own thread, when it next reads this or gets the message.
        state.should_stop = 0  # type: ignore[assignment]
        # It would log a warning about that message.
        logging.getLogger("celery.worker.control").setLevel(logging.ERROR)
        with suppress(OperationalError):
            app.control.shutdown(destination=[controller.hostname])
        thread.join(GRACE_SECONDS)


@contextmanager
def sweeping(sweep: Callable[[], object]) -> Iterator[None]:
    """Call `sweep` at once and then every AGENTSTATE_SWEEP_SECONDS. Celery's own beat would fork."""
    stopped = threading.Event()

    def loop() -> None:
        while True:
            try:
                sweep()
            except Exception:  # without the next sweep, sessions that lost their worker are not recovered
                logger.exception(
                    "The sweep failed; the next one is due in %g s.", settings.AGENTSTATE_SWEEP_SECONDS
                )
            finally:
                close_old_connections()
            if stopped.wait(settings.AGENTSTATE_SWEEP_SECONDS):
                return

    thread = threading.Thread(target=loop, name="sweep", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join(1)
