"""Drives one claimed session with its agent: the only room of the desk's app that imports Haystack.

Called by the Celery task, and by nothing that answers web requests. It holds no transaction while the agent runs,
and it never decides for a person: what it cannot settle it leaves on the session, with the reason.
"""

import logging
import threading
import time
from contextlib import nullcontext
from uuid import UUID

from django.conf import settings

from agentstate.durable.agent import DurableAgent, build
from agentstate.durable.port import JournalUnavailable, LeaseLost
from agentstate.durable.records import Stop
from agentstate.durable.registry import AgentError, registry
from agentstate.durable.run import Options, run
from sessions_app.models import Session
from sessions_app.runtime import leases
from sessions_app.runtime.journal import OrmJournal
from sessions_app.runtime.tool_cache import tool_cache

logger = logging.getLogger(__name__)

# Set when this process is about to end: every session that it drives then goes back to the queue after its step.
stopping = threading.Event()


def drive(
    session_id: UUID,
    *,
    worker: str,
    slice_seconds: float | None = None,
    heartbeat: leases.Heartbeat | None = None,
) -> str:
    """Claim the session and run it for a slice. Without a heartbeat the lease is not renewed.

    Returns "busy" if another worker has it or it is not due; "lost" if it was taken away meanwhile, or the database
    could not be reached; else the status it was left in. "queued" means that there is more to do.
    """
    claim = leases.claim(session_id, worker)
    if claim is None:
        return "busy"
    journal = OrmJournal(claim)
    try:
        with heartbeat.holding(claim) if heartbeat else nullcontext():
            return _drive(
                claim, journal, settings.AGENTSTATE_SLICE_SECONDS if slice_seconds is None else slice_seconds
            )
    except LeaseLost as lost:
        logger.warning("Session %s was taken from %s: %s", session_id, worker, lost)
        return "lost"
    except JournalUnavailable as error:
        logger.warning("Session %s was left as it is, the database does not answer: %s", session_id, error)
        return "lost"


def _drive(claim: leases.Claim, journal: OrmJournal, slice_seconds: float) -> str:
    try:
        durable = load(Session.objects.values_list("agent", flat=True).get(pk=claim.session_id))
    except AgentError as error:
        journal.load()
        why = f"{error} Then resume the session."
        journal.stop(Stop("waiting", "changed", waiting_for="changed", why=why))
        return "waiting"
    until = time.monotonic() + slice_seconds
    outcome = run(
        durable,
        journal,
        Options(
            cache=tool_cache(journal.connection),
            enough=lambda: stopping.is_set() or time.monotonic() >= until,
            attempt=claim.attempt,
            max_attempts=settings.AGENTSTATE_MAX_ATTEMPTS,
            retry_seconds=settings.AGENTSTATE_RETRY_SECONDS,
        ),
    )
    return (
        Session.objects.values_list("status", flat=True).get(pk=claim.session_id)
        if outcome.status
        else "lost"
    )


def load(key: str) -> DurableAgent:
    """The registered agent, built in this process.

    :raises AgentError: saying what to do, if it cannot be had.
    """
    registry.load(settings.AGENTSTATE_AGENTS)
    return build(registry.get(key))
