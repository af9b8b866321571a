"""Celery's tasks. A message is only a wake-up: what is due is recorded in the database, so losing one loses nothing.

They are `contained`: with a pool of threads, Celery loses a thread for good to what is no `Exception`.
"""

from functools import partial
from uuid import UUID

from celery import shared_task
from django.conf import settings

from agentstate.durable.interruptions import contained
from agentstate.queues import FOUND_QUEUE, LATER_QUEUE
from agentstate.worker_threads import worker_threads
from sessions_app.actions import bulk
from sessions_app.finding import search_follower, search_index
from sessions_app.mirror import live as mirror
from sessions_app.models import ReusableReply
from sessions_app.runtime import recovery, tool_cache
from sessions_app.runtime.process import heartbeat, spare_imports, worker_name
from sessions_app.runtime.queued_messages import forget_old_wake_ups, others_wait, urgent_waits
from sessions_app.wake import send_advances, wake, wake_bulk


@shared_task
@contained()
def advance(session_id: str) -> None:
    """Drive a session until it rests, or until its slice of time is over and other work waits for this worker."""
    from sessions_app.runtime.worker import compare_with_others, drive

    spare_imports()
    became = drive(
        UUID(session_id),
        worker=worker_name(),
        heartbeat=heartbeat(),
        others_wait=others_wait,
        urgent_waits=partial(urgent_waits, worker_threads().session_here()),
    )
    if became == "queued":
        wake(UUID(session_id), queue=LATER_QUEUE)
    elif became not in ("busy", "lost"):
        compare_with_others(UUID(session_id))


@shared_task
@contained()
def compare(session_id: str) -> None:
    """Find the sessions like one that a person has given another history without running it."""
    from sessions_app.runtime.worker import compare_with_others

    compare_with_others(UUID(session_id))


@shared_task
@contained()
def sweep() -> None:
    """Recover sessions that lost their worker, wake workers for those that are due, and what else has to be done again
    and again.

    Sent every AGENTSTATE_SWEEP_SECONDS.

    :raises ExceptionGroup: what some of the duties raised. None keeps the others from being done.
    """
    failed = list[Exception]()
    for duty in _DUTIES:
        try:
            duty()
        except Exception as error:
            failed.append(error)
    if failed:
        raise ExceptionGroup("Duties of the sweep have failed.", failed)


def _recover() -> None:
    # They expire: the next sweep finds what is still due, and while every worker is busy they must not pile up.
    send_advances(recovery.sweep(), expires=settings.AGENTSTATE_SWEEP_SECONDS, queue=FOUND_QUEUE)


def _continue_bulk_actions() -> None:
    for bulk_id in bulk.unattended():
        bulk_batch(bulk_id)


def _add_to_search() -> None:
    if not search_follower.follows():
        search_index.update()


_DUTIES = (
    _recover,
    forget_old_wake_ups,
    _continue_bulk_actions,
    mirror.find_lost,
    _add_to_search,
    tool_cache.forget_expired,
    ReusableReply.forget_expired,
)


@shared_task
@contained()
def bulk_batch(bulk_id: int) -> None:
    """Do some sessions of a bulk action; what is left goes behind what people have asked for meanwhile."""
    if bulk.run_batch(bulk_id):
        wake_bulk(bulk_id, queue=FOUND_QUEUE)
