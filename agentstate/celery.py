"""The Celery app: `celery -A agentstate worker` and `celery -A agentstate beat`.

The database is the truth and a message is only a wake-up: losing any of them, or all, loses nothing. So results
are not kept, messages that can be sent again soon expire, and a worker that loses the broker finishes its work.
Without REDIS_URL the broker lives inside one process, and only `manage.py up` may run a worker on it.
"""

import os
from typing import Any

from celery import Celery, signals
from kombu import Exchange, Queue

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "agentstate.settings")

from django.conf import settings

# The sweep and what it finds, apart from the wake-ups of sessions that are being run: those may wait in a long line,
# and whoever lost its worker must not wait behind them for ever.
SWEEP_QUEUE = "agentstate.sweep"
QUEUE = "agentstate"

app = Celery("agentstate")
# Web server threads send tasks too, and a thread knows only the default app.
app.set_default()
app.autodiscover_tasks(["sessions_app"])

app.conf.update(
    broker_url=settings.REDIS_URL or "memory://localhost//",
    broker_transport_options=(
        {
            # Longer than any slice takes; a message delivered twice only loses the claim.
            "visibility_timeout": 3600,
            # A wake-up is tried, not waited for: a page must not hang because the broker does.
            "socket_connect_timeout": 2,
            "socket_timeout": 30,
            "socket_keepalive": True,
            # As listed in task_queues: the sweep first.
            "queue_order_strategy": "priority",
        }
        if settings.REDIS_URL
        else {"polling_interval": 0.05}
    ),
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=None,
    task_publish_retry_policy={"max_retries": 1, "interval_start": 0, "interval_step": 0.1},
    task_default_queue=QUEUE,
    task_queues=[Queue(name, Exchange(name), routing_key=name) for name in (SWEEP_QUEUE, QUEUE)],
    task_ignore_result=True,
    result_backend=None,
    # Acknowledged when it arrives, and fetched only when somebody is free: no message is left open while a session
    # runs. An open one would end the worker when the broker goes away (kombu 5.7), and says nothing worth keeping.
    task_acks_late=False,
    worker_disable_prefetch=bool(settings.REDIS_URL),
    # A killed child has nothing left to tell: its place is for the sessions that wait.
    worker_lost_wait=0.5,
    task_serializer="json",
    accept_content=["json"],
    worker_prefetch_multiplier=1,
    worker_cancel_long_running_tasks_on_connection_loss=False,
    worker_hijack_root_logger=False,
    worker_redirect_stdouts=False,
    enable_utc=True,
    timezone="UTC",
    # Beat keeps no file: the one thing that it sends is due anyway when it starts.
    beat_scheduler="celery.beat:Scheduler",
    beat_schedule={
        "sweep": {
            "task": "sessions_app.tasks.sweep",
            "schedule": settings.AGENTSTATE_SWEEP_SECONDS,
            "options": {"expires": settings.AGENTSTATE_SWEEP_SECONDS, "queue": SWEEP_QUEUE},
        },
    },
)


@signals.celeryd_init.connect
@signals.beat_init.connect
def _refuse_a_broker_nobody_shares(**kwargs: Any) -> None:
    if not settings.REDIS_URL:
        raise SystemExit(
            "REDIS_URL is not set, so this process would wait for messages that no other process can send it. "
            "Set REDIS_URL to a Redis or Valkey server, or run everything in one process with `manage.py up`."
        )
