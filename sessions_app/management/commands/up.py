"""The whole of AgentState in one process: web server, worker and sweep, on a database that it prepares itself.

It may be killed at any moment and started again: sessions continue from what is committed. Several may run on
one database, which they prepare one after the other. For more than one machine, run a WSGI server and Celery instead,
with DATABASE_URL and REDIS_URL.
"""

import os
import signal
from ipaddress import ip_address
from typing import Any, NoReturn

from django.conf import settings
from django.core.management import BaseCommand, CommandError, CommandParser, call_command
from django.db import Error, connection
from django.utils import timezone

from agentstate.hosts import with_port
from agentstate.installation import MANAGE
from sessions_app.access.demo_users import close_demo_users, open_demo_users, why_refused
from sessions_app.access.roles import ROLES
from sessions_app.management.alone import alone_with_database, alone_with_folder
from sessions_app.management.unusable import why_unusable


class Command(BaseCommand):
    help = "Prepare the database, then run the web server, a worker and the sweep in this one process."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--host", default="127.0.0.1", help="The address to listen on (default: this machine only)."
        )
        parser.add_argument(
            "--port", default=os.environ.get("PORT") or "8000", help="Default: $PORT, or 8000."
        )
        parser.add_argument(
            "--no-demo", action="store_true", help="Create no demo users and no demo sessions."
        )

    def handle(self, *, host: str, port: str, no_demo: bool, **options: Any) -> None:
        # Celery and the agents take a while to import; other commands need not wait for them.
        from sessions_app import tasks
        from sessions_app.runtime import local

        password = "" if no_demo else os.environ.get("AGENTSTATE_DEMO_PASSWORD", "")
        refused = why_refused(password) if password else ""
        if refused:
            raise CommandError(f"AGENTSTATE_DEMO_PASSWORD is not good enough: {refused}")
        for signum in local.STOP_SIGNALS:
            signal.signal(signum, _leave)
        try:
            listening = local.listen(host, _port_number(port))
        except local.PortTaken as error:
            raise CommandError(
                f"{error} Choose another one, for example: PORT={_port_number(port) + 1}"
            ) from None

        with listening:
            _accept_plain_http()
            try:
                with alone_with_database():
                    self._prepare(listening.getsockname()[0], password, no_demo=no_demo)
            except Error as error:
                raise CommandError(why_unusable(error)) from error
            except OSError as error:
                raise CommandError(
                    f"The database or the static files cannot be prepared: {error}."
                ) from error
            from agentstate.wsgi import application

            with local.stop_signals() as signals, local.worker() as worker, local.sweeping(tasks.sweep):
                address = with_port(host, listening.getsockname()[1])
                self._say(f"AgentState is at http://{address}/ (Ctrl-C stops it)")
                local.serve(listening, application, signals)
        if worker.is_alive():
            self._say("Stopped in the middle of a step; the next start continues from what is committed.")
            os._exit(0)

    def _prepare(self, host: str, password: str, *, no_demo: bool) -> None:
        from agentstate.demo import seed
        from sessions_app.runtime.agents import publish_agents

        self._say("Preparing the database...")
        call_command("migrate", verbosity=0, interactive=False)
        self._collect_static()
        why = _why_no_demo_users(host)
        if why:
            self._close_demo_users(why)
            if not no_demo:
                self._say(f"No demo users: {why}. Create an account with: {MANAGE} createsuperuser")
        elif not no_demo:
            self._open_demo_users(password)
        for problem in publish_agents(beat_at=timezone.now()):
            self.stderr.write(problem)
        if not no_demo and seed.is_wanted():
            self._say("Preparing the sessions of the demo...")
            seed.seed()

    def _collect_static(self) -> None:
        # Processes on other databases may share the folder.
        with alone_with_folder(settings.STATIC_ROOT):
            call_command("collectstatic", verbosity=0, interactive=False)

    def _open_demo_users(self, password: str) -> None:
        users = open_demo_users(password)
        if users.not_ours:
            names = ", ".join(users.not_ours)
            self._say(
                f"Left unchanged, since this command did not create these users or set their passwords: {names}."
            )
        if password and users.new_password + users.unchanged:
            names = ", ".join(role for role in ROLES if role not in users.not_ours)
            self._say(f"Sign in as {names}, with the password in AGENTSTATE_DEMO_PASSWORD.")
            return
        if users.new_password:
            names = ", ".join(users.new_password)
            self._say(f"Sign in as {names}, with the password {users.password} (shown only once).")
        if users.unchanged:
            names = ", ".join(users.unchanged)
            self._say(
                f"Sign in as {names}. Forgotten the password? {MANAGE} changepassword {users.unchanged[-1]}"
            )

    def _close_demo_users(self, why: str) -> None:
        closed = close_demo_users()
        if closed:
            self._say(f"The passwords of the demo users {', '.join(closed)} no longer work: {why}.")

    def _say(self, line: str) -> None:
        self.stdout.write(line)
        self.stdout.flush()


def _leave(signum: int, frame: object) -> NoReturn:
    """Unwind the main thread: until the server runs, there is nothing to finish."""
    from sessions_app.runtime import local

    local.say_stopping()
    raise SystemExit(0)


def _port_number(port: str) -> int:
    if not port.isdecimal() or int(port) > 65535:
        raise CommandError(f"The port must be a number from 0 to 65535, not {port!r}.")
    return int(port)


def _why_no_demo_users(address: str) -> str:
    """Why a server on this address must have none, "" if it may: their password is on the screen, or in a script."""
    if connection.vendor != "sqlite":
        return "they are made on SQLite only"
    if settings.TRUSTED_PROXIES:
        return "this server is behind a proxy"
    if not ip_address(address).is_loopback:
        return f"other machines can reach this server at {address}"
    return ""


def _accept_plain_http() -> None:
    """This server speaks plain HTTP; unless HTTPS says that a proxy adds TLS, nothing may insist on it."""
    if settings.HTTPS is None:
        settings.SECURE_SSL_REDIRECT = settings.SESSION_COOKIE_SECURE = settings.CSRF_COOKIE_SECURE = False
        settings.SECURE_HSTS_SECONDS = 0
