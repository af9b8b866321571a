"""The whole of AgentState in one process: web server, worker and sweep, on a database that it prepares itself.

It may be killed at any moment and started again: sessions carry on from what is committed. Several may run on
one database. For more than one machine, run a WSGI server and Celery instead, with DATABASE_URL and REDIS_URL.
"""

import os
import secrets
import signal
from typing import Any, NoReturn

from django.conf import settings
from django.contrib.auth.models import User
from django.core.management import BaseCommand, CommandError, CommandParser, call_command
from django.core.wsgi import get_wsgi_application
from django.db import transaction

from sessions_app.access.roles import ROLES, give_role


class Command(BaseCommand):
    help = "Prepare the database, then run the web server, a worker and the sweep in this one process."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--host", default="127.0.0.1", help="The address to listen on (default: this machine only)."
        )
        parser.add_argument(
            "--port", default=os.environ.get("PORT") or "8000", help="Default: $PORT, or 8000."
        )
        parser.add_argument("--no-demo", action="store_true", help="Make no demo users and no demo sessions.")

    def handle(self, *, host: str, port: str, no_demo: bool, **options: Any) -> None:
        # Celery and the agents take a while to import; other commands need not wait for them.
        from sessions_app import tasks
        from sessions_app.runtime import local
        from sessions_app.runtime.agents import publish_agents

        for signum in (signal.SIGINT, signal.SIGTERM):
            signal.signal(signum, _leave)
        try:
            listening = local.listen(host, _port_number(port))
        except local.PortTaken as error:
            raise CommandError(
                f"{error} Choose another one, for example: PORT={_port_number(port) + 1}"
            ) from None

        with listening:
            _accept_plain_http()
            self._prepare()
            if not no_demo:
                self._make_demo_users()
            for problem in publish_agents():
                self.stderr.write(problem)
            if not no_demo:
                # Only now: it registers the demo's agents, which are published only where they are asked for.
                from agentstate.demo.seed import seed

                seed()
            with local.worker() as worker, local.sweeping(tasks.sweep):
                self._say(f"AgentState is at http://{host}:{listening.getsockname()[1]}/ (Ctrl-C stops it)")
                local.serve(listening, get_wsgi_application())
        if worker.is_alive():
            self._say("Stopped in the middle of a step; the next start carries on from what is committed.")
            os._exit(0)

    def _prepare(self) -> None:
        call_command("migrate", verbosity=0, interactive=False)
        call_command("collectstatic", verbosity=0, interactive=False)

    @transaction.atomic
    def _make_demo_users(self) -> None:
        """See that the demo users exist. A password that someone has set stays, unless the environment names one."""
        named = os.environ.get("AGENTSTATE_DEMO_PASSWORD")
        password = named or secrets.token_urlsafe(12)
        created = False
        for role in ROLES:
            user, is_new = User.objects.get_or_create(username=role)
            if is_new or (named and not user.check_password(named)):
                user.set_password(password)
                user.save()
            if is_new:
                give_role(user, role)
                created = True
        who = ", ".join(ROLES)
        if named:
            self._say(f"Sign in as {who}, with the password in AGENTSTATE_DEMO_PASSWORD.")
        elif created:
            self._say(f"Sign in as {who}, with the password {password} (shown this once).")
        else:
            self._say(f"Sign in as {who}. Forgotten the password? manage.py changepassword supervisor")

    def _say(self, line: str) -> None:
        self.stdout.write(line)
        self.stdout.flush()


def _leave(signum: int, frame: object) -> NoReturn:
    """Unwind the main thread, once; an impatient second Ctrl-C must not interrupt the stopping."""
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)
    raise SystemExit(0)


def _port_number(port: str) -> int:
    if not port.isdecimal() or int(port) > 65535:
        raise CommandError(f"The port must be a number from 0 to 65535, not {port!r}.")
    return int(port)


def _accept_plain_http() -> None:
    """This server speaks plain HTTP; unless HTTPS says that a proxy adds TLS, nothing may insist on it."""
    if settings.HTTPS is None:
        settings.SECURE_SSL_REDIRECT = settings.SESSION_COOKIE_SECURE = settings.CSRF_COOKIE_SECURE = False
        settings.SECURE_HSTS_SECONDS = 0
