"""A Celery worker, the sweep and the web server in threads of one process: the parts of `manage.py up`.

Each is a context manager or a call that the main thread leaves within a few seconds. Work that does not end
by then is interrupted as by a crash, which loses nothing: the next start resumes it from the journal.
"""

import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from celery.worker import WorkController, state
from django.conf import settings
from django.db import close_old_connections
from kombu.exceptions import OperationalError
from waitress import wasyncore
from waitress.server import create_server

from agentstate.celery import app
from sessions_app.unavailable import in_one_line, may_pass

logger = logging.getLogger(__name__)

# They wait for their models most of the time. A session beyond these waits for the slice of another.
SESSIONS_AT_ONCE = 16
REQUESTS_AT_ONCE = 8
GRACE_SECONDS = 3.5
STOP_SIGNALS = frozenset({signal.SIGINT, signal.SIGTERM})


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


@contextmanager
def stop_signals() -> Iterator[socket.socket]:
    """From here on SIGINT and SIGTERM raise nothing in this, the main thread; the socket tells `serve` of them.

    A handler that raises does so wherever the thread is, and Python drops what is raised in a finalizer: the signal
    would be lost. They stay harmless afterwards, so that an impatient second Ctrl-C does not interrupt the stopping.
    """
    told, teller = socket.socketpair()
    teller.setblocking(False)
    with told, teller:
        signal.set_wakeup_fd(teller.fileno(), warn_on_full_buffer=False)
        for signum in STOP_SIGNALS:
            signal.signal(signum, _leave_it_to_the_socket)
        try:
            yield told
        finally:
            signal.set_wakeup_fd(-1)


def _leave_it_to_the_socket(signum: int, frame: object) -> None:
    pass


class _StopSignals(wasyncore.dispatcher):  # type: ignore[misc]  # untyped
    """Ends the server's loop when a stop signal has arrived."""

    def writable(self) -> bool:
        return False

    def handle_read(self) -> None:
        if STOP_SIGNALS & set(self.recv(4096)):
            say_stopping()
            raise SystemExit


def say_stopping() -> None:
    # Not by `print`: a signal's handler may have interrupted one.
    text = f"\nStopping after the current step, or in {GRACE_SECONDS:g} seconds if that takes longer...\n"
    os.write(1, text.encode())


def serve(listening: socket.socket, wsgi: Callable[..., Any], signals: socket.socket) -> None:
    """Answer requests until `signals`, the socket of `stop_signals`, tells of one; then finish those begun."""
    sockets: dict[int, Any] = {}
    _StopSignals(signals, sockets)
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
        map=sockets,
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
    """Run sessions in this process, which has published its agents. On leaving, no step starts, and steps that run have
    GRACE_SECONDS to end.

    Yields the worker's thread. It is still alive afterwards if a step did not end in time.
    """
    from sessions_app.runtime.process import heartbeat, start_publishing
    from sessions_app.runtime.stopping import stopping

    logging.getLogger("celery").setLevel(logging.WARNING)
    stopping.clear()
    state.should_stop = None
    controller = _Worker()
    thread = threading.Thread(target=controller.start, name="worker", daemon=True)
    thread.start()
    # Celery's signals of a worker that has started are sent by its command line only.
    heartbeat()
    start_publishing(published=True)
    try:
        yield thread
    finally:
        stopping.set()
        # Celery's loop ends in its own thread, when it next reads this or gets a message.
        state.should_stop = 0  # type: ignore[assignment]
        # It would log a warning about that message.
        logging.getLogger("celery.worker.control").setLevel(logging.ERROR)
        # Its loop waits for up to two seconds before and after it reads this; a message ends the wait. Until it has a
        # mailbox, messages are lost: so more are sent until the thread has ended.
        given_up = time.monotonic() + GRACE_SECONDS
        while thread.is_alive() and time.monotonic() < given_up:
            with suppress(OperationalError):
                app.control.shutdown(destination=[controller.hostname])
            thread.join(0.25)


@contextmanager
def sweeping(sweep: Callable[[], object]) -> Iterator[None]:
    """Call `sweep` at once and then every AGENTSTATE_SWEEP_SECONDS. Celery's own beat would fork."""
    stopped = threading.Event()

    def loop() -> None:
        while True:
            try:
                sweep()
            # Without the next sweep, sessions that lost their worker are not recovered.
            except Exception as error:
                logger.error(
                    "The sweep failed; the next one is due in %g s: %s",
                    settings.AGENTSTATE_SWEEP_SECONDS,
                    in_one_line(error),
                    exc_info=None if may_pass(error) else error,
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
