"""Drives one session with its agent for a slice of time.

It imports the engine, and with it Haystack, so the Celery task imports it when it runs, and nothing that answers web
requests does. No transaction is open while the agent runs. It
never decides for a person: a session that needs a decision waits, with the reason.
"""

import logging
import time
from collections.abc import Callable
from contextlib import nullcontext
from uuid import UUID

from django.conf import settings

from agentstate.durable import doubts, long_term, streaming
from agentstate.durable.embedding import Embedder, embedder_of
from agentstate.durable.port import JournalUnavailable, LeaseLost
from agentstate.durable.registry import AgentError, registry
from agentstate.durable.run import Options, Outcome, run, run_async
from agentstate.durable.run_end import AgentChanged
from sessions_app.models import Session, Status
from sessions_app.runtime import leases, similar
from sessions_app.runtime.agents import may_run_again, publish_listed_tools
from sessions_app.runtime.event_loop import run_on_loop
from sessions_app.runtime.journal import OrmJournal
from sessions_app.runtime.kept_contexts import Kept, kept_contexts
from sessions_app.runtime.long_term import OrmMemory
from sessions_app.runtime.own_agents import built, own_agents
from sessions_app.runtime.partial_replies import shown_replies
from sessions_app.runtime.semantic_cache import OrmReplyStore
from sessions_app.runtime.stopping import stopping
from sessions_app.runtime.tool_cache import tool_cache
from sessions_app.unavailable import in_one_line, may_pass

logger = logging.getLogger(__name__)

# A session that has run for less does not give way to what is urgent: to take it up again costs as much as some steps.
LEAST_SECONDS = 1.0


def drive(
    session_id: UUID,
    *,
    worker: str,
    slice_seconds: float | None = None,
    heartbeat: leases.Heartbeat | None = None,
    others_wait: Callable[[], bool] = lambda: True,
    urgent_waits: Callable[[], bool] = lambda: False,
) -> str:
    """Claim the session and run it for a slice. Without a heartbeat the lease is not renewed.

    :param others_wait: Asked at each step behind the slice: while it says False, the session goes on. May be called in
        any thread.
    :param urgent_waits: Asked at each step of the slice but those of its beginning: when it says True, the session
        gives way. May be called in any thread.
    :returns: "busy" if another worker has it, if it is left to another worker, or if it is not due; "lost" if another
        worker took it over meanwhile, or the database was unavailable; else its status after the run. "queued" means
        that there is more to do.
    """
    claim = leases.claim(session_id, worker, own=own_agents())
    if claim is None:
        return "busy"
    kept = kept_contexts().take(session_id, epoch=claim.epoch)
    journal = OrmJournal(claim, known=kept.checkpoint if kept else None)
    try:
        with heartbeat.keeping(claim) if heartbeat else nullcontext():
            if slice_seconds is None:
                slice_seconds = settings.AGENTSTATE_SLICE_SECONDS
            return _drive(claim, journal, kept, slice_seconds, others_wait, urgent_waits)
    except LeaseLost as lost:
        logger.warning("Session %s was taken over from %s: %s", session_id, worker, lost)
        return "lost"
    except JournalUnavailable as error:
        logger.warning(
            "Session %s is left to the next claim, since the database is unavailable: %s", session_id, error
        )
        return "lost"


def _drive(
    claim: leases.Claim,
    journal: OrmJournal,
    kept: Kept | None,
    slice_seconds: float,
    others_wait: Callable[[], bool],
    urgent_waits: Callable[[], bool],
) -> str:
    try:
        durable = built(claim.agent)
    except AgentError as error:
        why = f"{error} Then resume the session."
        calls = journal.load().calls
        journal.end_run(doubts.in_doubt(calls, may_run_again(claim.agent), also=why) or AgentChanged(why))
        return "waiting"
    begun = time.monotonic()

    def gives_way() -> bool:
        has_run = time.monotonic() - begun
        if stopping.is_set():
            return True
        if has_run >= slice_seconds and others_wait():
            return True
        return has_run >= LEAST_SECONDS and urgent_waits()

    def embedder() -> Embedder | None:
        return embedder_of(registry.get(durable.key))

    policy = durable.semantic_cache
    options = Options(
        cache=tool_cache(journal.connection),
        slice_is_over=gives_way,
        attempt=claim.attempt,
        max_attempts=settings.AGENTSTATE_MAX_ATTEMPTS,
        retry_seconds=settings.AGENTSTATE_RETRY_SECONDS,
        replies=OrmReplyStore(journal.connection, claim, policy, embedder) if policy else None,
        context=kept.context if kept else None,
    )
    memory = OrmMemory(journal.connection, claim, embedder)
    with long_term.using(memory), streaming.shown_by(shown_replies(claim)):
        if durable.runs_async:
            outcome = run_on_loop(run_async(durable, journal, options))
        else:
            outcome = run(durable, journal, options)
    _keep(claim, journal, outcome)
    try:
        publish_listed_tools(durable)
    except Exception:  # the tools are published for showing only: the run itself has ended well
        logger.exception("The tools that the agent %s has listed could not be published.", durable.key)
    return Session.objects.values_list("status", flat=True).get(pk=claim.session_id)


def _keep(claim: leases.Claim, journal: OrmJournal, outcome: Outcome) -> None:
    """Keep what the next run of this process may go on with. Never fails: that run can do without."""
    checkpoint = journal.last_checkpoint
    if outcome.status != Status.QUEUED or outcome.context is None or checkpoint is None:
        return
    try:
        kept_contexts().keep(
            claim.session_id,
            epoch=claim.epoch,
            checkpoint=checkpoint,
            context=outcome.context,
            began=outcome.began,
        )
    except Exception:
        logger.exception("The context of the session %s was not kept.", claim.session_id)


def compare_with_others(session_id: UUID) -> None:
    """Find the sessions like this one, which has come to rest. Never fails: the list is for showing only."""
    try:
        similar.compare(session_id)
    except Exception as error:
        logger.error(
            "The session %s could not be compared with others: %s",
            session_id,
            in_one_line(error),
            exc_info=None if may_pass(error) else error,
        )
