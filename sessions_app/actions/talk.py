"""Starting a session, and talking to its agent."""

from collections.abc import Iterable
from typing import Any
from uuid import UUID

from django.db import transaction
from django.utils import timezone

from sessions_app.access.errors import Invalid, Refused
from sessions_app.access.roles import Actor
from sessions_app.actions.base import (
    begin_turn_if_over,
    check,
    commit,
    enter_planning,
    fit,
    given,
    lock,
    require,
    settle,
    storable,
)
from sessions_app.models import Branch, InboxMessage, RegisteredAgent, Session, SessionTag, Status
from sessions_app.wake import wake


@transaction.atomic(durable=True)
def start(
    *,
    actor: Actor,
    agent: str,
    message: str,
    title: str = "",
    customer: str = "",
    tags: Iterable[str] = (),
    state: dict[str, Any] | None = None,
    generation_kwargs: dict[str, Any] | None = None,
    reason: str = "",
) -> Session:
    """Start a session of `agent` with a first message, and wake a worker for it.

    :param title: The first 80 characters of the message, if none is given.
    :param tags: Kept in lower case, each once.
    :param state: Values for the agent's state keys.
    :raises Invalid: for an unknown agent, naming those there are, and for values that cannot be stored.
    :raises Refused: for an agent that cannot be built.
    """
    require(actor, "start")
    message = given("The message", message)
    reason = fit("The reason", reason)
    names = sorted({given("A tag", tag, 50).lower() for tag in tags})
    inputs = {
        "state": storable("The state", state),
        "generation_kwargs": storable("The generation kwargs", generation_kwargs),
    }
    registered = RegisteredAgent.objects.filter(key=agent).first()
    if registered is None:
        known = ", ".join(RegisteredAgent.objects.order_by("key").values_list("key", flat=True))
        raise Invalid(
            f"There is no agent {agent!r}. There are: {known}."
            if known
            else f"There is no agent {agent!r}, nor any other: no worker has published its agents yet."
        )
    if registered.problem:
        raise Refused(f"The agent {agent!r} cannot run: {registered.problem}")

    now = timezone.now()
    session = Session(
        agent=agent,
        title=fit("The title", title, 200) or " ".join(message.split())[:80],
        customer=fit("The customer", customer, 200),
        inputs=inputs,
        created_at=now,
        phase_since=now,
    )
    enter_planning(session, now)
    settle(session, Status.QUEUED, now=now)
    session.save(force_insert=True)
    session.branch = Branch.objects.create(session=session, number=1, created_by=actor.user, reason=reason)
    SessionTag.objects.bulk_create(SessionTag(session=session, name=name) for name in names)
    inbox = InboxMessage.objects.create(session=session, text=message, author=actor.user)
    commit(session, "started", actor, reason, {"inbox": inbox.pk})
    wake(session.pk)
    return session


@transaction.atomic(durable=True)
def send_message(
    *,
    actor: Actor,
    session_id: UUID | str,
    text: str,
    reason: str = "",
    expected_version: int | None = None,
) -> Session:
    """Say something to the agent: it reads it at its next step, or as the next turn of an ended session."""
    require(actor, "message")
    text = given("The message", text)
    reason = fit("The reason", reason)
    session = lock(session_id, expected_version)
    check(session, "message")
    inbox = InboxMessage.objects.create(session=session, text=text, author=actor.user)
    if session.status == Status.IDLE:
        now = timezone.now()
        begin_turn_if_over(session, now)
        settle(session, Status.QUEUED, now=now)
        wake(session.pk)
    return commit(session, "message", actor, reason, {"inbox": inbox.pk})
