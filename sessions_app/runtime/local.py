"""A Celery worker, the sweep and the web server in threads of one process: what `manage.py up` is made of.

Each is a context manager or a call that the main thread leaves within a few seconds. Work that does not end
by then is left behind as a crash would leave it, which loses nothing: the next start carries on from the journal.
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
    """A listening socket; connections wait in it until `serve` answers them.

    :raises PortTaken: if another process has the port, or this one may not have it.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=128)
    except OSError as error:
        raise PortTaken(f"Cannot listen on {host} port {port}: {os.strerror(error.errno or 0)}.") from error


def serve(listening: socket.socket, wsgi: Callable[..., Any]) -> None:
    """Answer requests until SystemExit or KeyboardInterrupt is raised in this thread; then finish what is begun."""
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
        self.is_ready = threading.Event()
        super().__init__(
            app=app,
            pool="threads",
            concurrency=SESSIONS_AT_ONCE,
            loglevel=logging.WARNING,
            without_gossip=True,
            without_mingle=True,
            without_heartbeat=True,
        )

    def on_consumer_ready(self, consumer: Any) -> None:
        self.is_ready.set()


@contextmanager
def worker() -> Iterator[threading.Thread]:
    """Run sessions in this process. On leaving, no step starts, and what runs gets GRACE_SECONDS to reach its end.

    The thread that is handed out is alive afterwards if something did not end.
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
        # Celery's loop leaves by itself, in its own thread, when it looks at this or gets the message.
        state.should_stop = 0  # type: ignore[assignment]
        logging.getLogger("celery.worker.control").setLevel(
            logging.ERROR
        )  # It would warn of just that message.
        with suppress(OperationalError):
            app.control.shutdown(destination=[controller.hostname])
        thread.join(GRACE_SECONDS)


@contextmanager
def sweeping(sweep: Callable[[], object]) -> Iterator[None]:
    """Call `sweep` at once and then each AGENTSTATE_SWEEP_SECONDS. Celery's own beat would fork."""
    stopped = threading.Event()

    def loop() -> None:
        while True:
            try:
                sweep()
            except (
                Exception
            ):  # Whatever it was, the next sweep must come: without it, what lost its worker stays lost.
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
