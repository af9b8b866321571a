"""Fills an empty database with sessions in every status, by the usual actions and the usual worker.

Nothing is faked: the refund was approved, the letter is in doubt because the printing service did not answer, and the
research waits for a worker.
"""

import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from uuid import UUID

from django.conf import settings
from django.contrib.auth.models import User
from django.db.models import F
from django.utils import timezone

from agentstate.demo.model import uses_real_model
from agentstate.names import DEMO_WORKER
from sessions_app import actions
from sessions_app.access.errors import ActionError
from sessions_app.access.roles import Actor
from sessions_app.models import Checkpoint, Event, InboxMessage, Session, Status, ToolCall

logger = logging.getLogger(__name__)

PATIENCE_SECONDS = 15.0


def seed() -> int:
    """Start the demo's sessions and run each as far as intended; returns how many were started.

    None are started if there are sessions already, if the demo agents are not registered, or if they use a real
    model, which costs money. Call it once the agents are published, and best before a worker runs.
    """
    if not is_wanted():
        return 0
    with _without_delay():
        for scene in SCENES:
            try:
                scene()
            except ActionError as error:
                # Another worker was faster than this one. The session exists, in another status than intended.
                logger.warning("The demo's %s did not go as planned: %s", scene.__name__, error)
    return Session.objects.count()


def is_wanted() -> bool:
    """Whether the desk is empty, and its demo agents cost nothing."""
    if Session.objects.exists() or "agentstate.demo.agents" not in settings.AGENTSTATE_AGENTS:
        return False
    if uses_real_model():
        logger.info("The demo agents use a real model, so no demo sessions are started.")
        return False
    return True


def question() -> None:
    session = _start(
        "claims", "Is hail covered?", "Hail and glass", "Aiko Tanaka", "POL-8806", tags=("question",)
    )
    _run(session)


def conversation() -> None:
    session = _start(
        "claims", "what is my policy status", "Policy, deductible and claim", "Maria Santos", tags=("car",)
    )
    _run(session)
    for text in ("also check whether my deductible applies", "look up claim CLM-1042"):
        _say(session, text)
    fork = actions.fork(
        actor=_actor("operator"),
        session_id=session.pk,
        checkpoint_id=_checkpoint(session, Checkpoint.Kind.END, turn=2),
        message="look up claim CLM-1050",
        title="What if she means the windscreen",
        reason="The customer has a second claim open",
    )
    _run(fork)


def approved_refund() -> None:
    text = "Please refund the deductible on claim CLM-1051"
    session = _start(
        "claims", text, "Tree on the garage", "Daniel Okafor", "POL-8802", tags=("refund", "home")
    )
    _run(session)
    call = _last_call(session, "issue_refund")
    actions.approve(
        actor=_actor("supervisor"),
        session_id=session.pk,
        call_id=call.pk,
        reason="The neighbour's insurer has confirmed it in writing",
    )
    _run(session)


def rejected_refund() -> None:
    text = "I want my money back on CLM-1052"
    session = _start("claims", text, "Water from above", "Priya Raman", "POL-8803", tags=("refund", "home"))
    _run(session)
    call = _last_call(session, "issue_refund")
    actions.reject(
        actor=_actor("supervisor"),
        session_id=session.pk,
        call_id=call.pk,
        message="The landlord's insurer has withdrawn its statement; we are asking them again.",
    )
    _run(session)


def refund_to_approve() -> None:
    text = "Please refund the deductible on claim CLM-1042"
    session = _start(
        "claims", text, "Refund after a rear-end collision", "Maria Santos", tags=("refund", "car", "urgent")
    )
    _run(session)
    _assign(session, "supervisor")


def another_refund_to_approve() -> None:
    text = "The airline has admitted it. Refund CLM-1045, policy POL-8804, please."
    session = _start("claims", text, "Lost suitcase", "Jonas Weber", "POL-8804", tags=("refund", "travel"))
    _run(session)


def letter_in_doubt() -> None:
    text = "Send a letter to POL-8807 saying that the roofer comes on Thursday."
    session = _start("letters", text, "Letter to a farmhouse", "Greta Lindqvist", tags=("letter", "home"))
    _run(session)


def letters() -> None:
    text = "Send a letter to POL-8802 and POL-8803 saying that our office is closed on Friday."
    session = _start("letters", text, "Closed on Friday", tags=("letter",))
    _run(session)


def failure() -> None:
    text = "What was paid on ARC-0413 before the archive moved?"
    session = _start(
        "claims", text, "Question on an archived claim", "Ruth Feldman", "POL-8805", tags=("archive",)
    )
    _run(session)
    _assign(session, "operator")


def pause() -> None:
    text = "Refund CLM-1047 under POL-8806"
    session = _start("claims", text, "Hail on the bonnet", "Aiko Tanaka", "POL-8806", tags=("refund", "car"))
    _run(session, slice_seconds=0)
    actions.pause(
        actor=_actor("operator"),
        session_id=session.pk,
        reason="The weather service corrects its report tomorrow",
    )


def rewind() -> None:
    text = "Does the deductible apply to CLM-1043?"
    session = _start("claims", text, "Burst pipe in the kitchen", "Daniel Okafor", "POL-8802", tags=("home",))
    _run(session)
    _say(session, "Write a letter about CLM-1043")
    actions.rewind(
        actor=_actor("operator"),
        session_id=session.pk,
        checkpoint_id=_checkpoint(session, Checkpoint.Kind.START, turn=2),
        reason="The letter names the wrong claim; ask the customer first",
    )


def cancellation() -> None:
    text = "Send a letter to POL-8805 saying that the policy has lapsed."
    session = _start("letters", text, "Notice of lapse", "Ruth Feldman", tags=("letter", "car"))
    actions.cancel(
        actor=_actor("operator"), session_id=session.pk, reason="She paid this morning; no letter is needed"
    )


def rush_hour() -> None:
    text = "It is rush hour, but what is the status of my claim CLM-1049?"
    session = _start("claims", text, "Surgery for a beagle", "Tom Becker", "POL-8808", tags=("pet",))
    _run(session)


def hanging_worker() -> None:
    """A worker that renews its lease and does nothing: what a hanging call to a service looks like from outside."""
    session = _start(
        "claims", "what is my policy status", "A worker that hangs", "Noor Haddad", "POL-8803", tags=("car",)
    )
    now = timezone.now()
    long_ago = now - timedelta(minutes=47)
    Event.objects.filter(branch__session=session).update(created_at=long_ago)
    InboxMessage.objects.filter(session=session).update(created_at=long_ago)
    Session.objects.filter(pk=session.pk, status=Status.QUEUED).update(
        status=Status.RUNNING,
        worker="claims-2",
        epoch=F("epoch") + 1,
        attempt=1,
        next_run_at=None,
        lease_expires_at=now + timedelta(days=365),
        created_at=long_ago,
        phase_since=long_ago,
        updated_at=long_ago,
    )


def research() -> None:
    _start(
        "research", "Research the storm damage of the year", "Storm damage of the year", tags=("research",)
    )


# The oldest first: what is left for the workers, and what needs a person, is listed first on the pages.
SCENES: list[Callable[[], None]] = [
    question,
    letters,
    conversation,
    approved_refund,
    rejected_refund,
    cancellation,
    rewind,
    pause,
    failure,
    letter_in_doubt,
    another_refund_to_approve,
    refund_to_approve,
    hanging_worker,
    rush_hour,
    research,
]


def _start(
    agent: str,
    message: str,
    title: str,
    customer: str = "",
    policy_number: str = "",
    *,
    tags: tuple[str, ...] = (),
) -> Session:
    return actions.start(
        actor=_actor("operator"),
        agent=agent,
        message=message,
        title=title,
        customer=customer,
        tags=tags,
        state={"policy_number": policy_number} if policy_number else None,
    )


def _say(session: Session, text: str) -> None:
    actions.send_message(actor=_actor("operator"), session_id=session.pk, text=text, from_customer=True)
    _run(session)


def _assign(session: Session, username: str) -> None:
    user = User.objects.filter(username=username).first()
    if user is not None:
        actions.assign(actor=_actor("supervisor"), session_id=session.pk, assignee=user)


def _run(session: Session, slice_seconds: float = PATIENCE_SECONDS) -> None:
    """Drive the session for a slice. If another worker has it, wait until that one is done with it."""
    from sessions_app.runtime.worker import drive

    until = time.monotonic() + PATIENCE_SECONDS
    while drive(session.pk, worker=DEMO_WORKER, slice_seconds=slice_seconds) == "busy" and _goes_on(
        session.pk
    ):
        if time.monotonic() > until:
            logger.warning("The demo's session %s is still running.", session.pk)
            return
        time.sleep(0.05)


def _goes_on(session_id: UUID) -> bool:
    session = Session.objects.get(pk=session_id)
    due = session.next_run_at is not None and session.next_run_at <= timezone.now()
    return session.status == Status.RUNNING or due


def _checkpoint(session: Session, kind: Checkpoint.Kind, *, turn: int) -> int:
    session.refresh_from_db()
    assert session.branch is not None
    checkpoints = Checkpoint.objects.visible_on(session.branch).filter(kind=kind).order_by("position")
    return checkpoints.values_list("pk", flat=True)[turn - 1]


def _last_call(session: Session, tool: str) -> ToolCall:
    session.refresh_from_db()
    assert session.branch is not None
    return ToolCall.objects.visible_on(session.branch).filter(tool=tool).latest("position")


def _actor(role: str) -> Actor:
    """The demo user of that name; without one, the demo itself."""
    user = User.objects.filter(username=role).first()
    return Actor.of(user) if user else Actor.system("demo")


@contextmanager
def _without_delay() -> Iterator[None]:
    """Let the demo's model and tools answer at once, in this process, until the block ends."""
    before = os.environ.get("AGENTSTATE_DEMO_DELAY")
    os.environ["AGENTSTATE_DEMO_DELAY"] = "0"
    try:
        yield
    finally:
        if before is None:
            del os.environ["AGENTSTATE_DEMO_DELAY"]
        else:
            os.environ["AGENTSTATE_DEMO_DELAY"] = before
