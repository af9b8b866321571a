"""The Celery app: `celery -A agentstate worker` and `celery -A agentstate beat`.

The database is the truth and a message is only a wake-up: losing any of them, or all, loses nothing. So results
are not stored, messages that can be sent again soon expire, and a worker that loses the broker finishes its work.
Without REDIS_URL the broker exists in one process only, and only `manage.py up` may run a worker on it.
"""

import logging
import os
from functools import cached_property
from typing import Any

from celery import Celery, concurrency, signals
from click import get_current_context
from click.core import ParameterSource
from kombu import Exchange, Queue
from kombu.transport.redis import Transport

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "agentstate.settings")

from django.conf import settings

from agentstate.broker import CONNECTION_ERRORS, Channel, why_too_old
from agentstate.installation import MANAGE
from agentstate.queues import LATER_QUEUE, QUEUE, QUEUES, SWEEP_QUEUE

# How long a request or a command waits for an answer of a broker that has stopped; each wake-up is tried twice.
_PUBLISH_SECONDS = 1


class App(Celery):
    """Celery's app, whose producers wait for the broker for a short time only, with the beat of `agentstate.beat`."""

    def connection_for_write(self, url: str | None = None, **options: Any) -> Any:
        """The connection of producers. Nothing waits for a wake-up: the sweep finds the session that it was for.

        A consumer waits longer on its own connection: for messages, not for answers.
        """
        if settings.REDIS_URL:
            given = options.pop("transport_options", None) or {}
            options["transport_options"] = {"socket_timeout": _PUBLISH_SECONDS, **given}
        return super().connection_for_write(url, **options)

    @cached_property
    def Beat(self) -> Any:
        from agentstate.beat import Beat

        return self.subclass_with_self(Beat)


app = App("agentstate")
# Web server threads send tasks too, and a thread knows only the default app.
app.set_default()
app.autodiscover_tasks(["sessions_app"])

app.conf.update(
    broker_url=settings.REDIS_URL or "memory://localhost//",
    broker_transport_options=(
        {
            # Longer than any slice takes. A message that is delivered twice finds the session claimed.
            "visibility_timeout": 3600,
            # A request must not hang because the broker does.
            "socket_connect_timeout": 2,
            "socket_timeout": 30,
            "socket_keepalive": True,
            # Acknowledgements stay on ("ack_emulation"). A worker that loses the broker while a message is on its way
            # to a child logs that it could not acknowledge it. Without them, kombu would write such messages to a
            # file in the directory for temporary files instead, and log that as an error.
        }
        if settings.REDIS_URL
        else {"polling_interval": 0.05}
    ),
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=None,
    task_publish_retry_policy={"max_retries": 1, "interval_start": 0, "interval_step": 0.1},
    task_default_queue=QUEUE,
    task_routes={"sessions_app.tasks.compare": {"queue": LATER_QUEUE}},
    task_queues=[Queue(name, Exchange(name), routing_key=name) for name in QUEUES],
    task_ignore_result=True,
    result_backend=None,
    # Acknowledged on arrival, and fetched only when a worker is free: no message is unacknowledged while a session
    # runs. One that is would end the worker when the broker becomes unavailable (kombu 5.7).
    task_acks_late=False,
    worker_disable_prefetch=bool(settings.REDIS_URL),
    # Nothing waits for the result of a killed child: replace it at once.
    worker_lost_wait=0.5,
    worker_pool="agentstate.worker_pool:TaskPool",
    task_serializer="json",
    accept_content=["json"],
    worker_prefetch_multiplier=1,
    worker_cancel_long_running_tasks_on_connection_loss=False,
    worker_redirect_stdouts=False,
    enable_utc=True,
    timezone="UTC",
    # Beat needs no schedule file: the sweep is due when it starts.
    beat_scheduler="celery.beat:Scheduler",
    beat_schedule={
        "sweep": {
            "task": "sessions_app.tasks.sweep",
            "schedule": settings.AGENTSTATE_SWEEP_SECONDS,
            "options": {"expires": settings.AGENTSTATE_SWEEP_SECONDS, "queue": SWEEP_QUEUE},
        },
    },
)

Transport.Channel = Channel
Transport.connection_errors = CONNECTION_ERRORS
# That of `celery worker -P threads`, for which there is no setting.
concurrency.ALIASES["threads"] = "agentstate.worker_pool:ThreadPool"  # type: ignore[attr-defined]


@signals.setup_logging.connect
def _leave_logging_to_the_settings(loglevel: int, **kwargs: Any) -> None:
    """That this is connected keeps Celery from setting a level and a format: those of LOGGING hold for all processes.

    Celery would take WARNING where the command line says nothing. What it does say (`-l`) counts for this process.
    """
    context = get_current_context(silent=True)
    source = context and context.get_parameter_source("loglevel")
    if source in (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT):
        logging.getLogger().setLevel(loglevel)


@signals.celeryd_init.connect
@signals.beat_init.connect
def _refuse_unfit_broker(**kwargs: Any) -> None:
    if not settings.REDIS_URL:
        raise SystemExit(
            "REDIS_URL is not set, so this process would wait for messages that no other process can send it. "
            f"Set REDIS_URL to a Redis or Valkey server, or run everything in one process with `{MANAGE} up`."
        )
    if why := why_too_old(settings.REDIS_URL):
        raise SystemExit(f"{why} Set REDIS_URL to a newer one, or to a Valkey server.")
