"""What every action has in common: lock and check first, write, then commit with an audit event.

An action locks the session's row and asks in this order: may this actor do it (`Forbidden`), is what was
asked for complete (`Invalid`), is there such a session (`NotFound`), is it still the one that was seen
(`Moved`), and is it in a state for it (`Refused`). After any of these errors nothing has changed.
"""

import json
from collections.abc import Iterator
from datetime import datetime
from typing import Any
from uuid import UUID

from django.utils import timezone

from agentstate.domain.phases import AgentPhase
from agentstate.durable.progress import Meter
from agentstate.durable.records import Progress
from sessions_app.access import availability
from sessions_app.access.errors import Forbidden, Invalid, Moved, NotFound, Refused
from sessions_app.access.roles import Actor
from sessions_app.models import Branch, BulkItem, Event, Phase, Session, Status, resting_fields


def require(actor: Actor, act: str) -> None:
    if not actor.may(act):
        raise Forbidden(f"{actor.name} is not allowed to {act} here.")


def lock(session_id: UUID | str, expected_version: int | None = None) -> Session:
    """The session with its branch, locked until the transaction ends."""
    try:
        pk = UUID(str(session_id))
        # The branch cannot be locked along: PostgreSQL refuses that for a nullable join.
        session = Session.objects.select_for_update(of=("self",)).select_related("branch").get(pk=pk)
    except (ValueError, Session.DoesNotExist):
        raise NotFound(f"There is no session {session_id}.") from None
    if expected_version is not None and session.version != expected_version:
        raise Moved("The session has changed since this page was drawn. Look at it again, then decide.")
    return session


def check(session: Session, act: str, **facts: Any) -> None:
    reason = availability.why_not(session, act, **facts)
    if reason is not None:
        raise Refused(reason)


def branch_of(session: Session) -> Branch:
    assert session.branch is not None, f"session {session.pk} has no branch"
    return session.branch


def enter_planning(session: Session, now: datetime) -> None:
    """Begin a turn, or the next try after an error, as the state machine allows; counted in the totals."""
    meter = Meter(
        Progress(session.phase, session.previous_phase, session.phase_since, session.totals),
        clock=lambda: now,
    )
    meter.to(AgentPhase.PLANNING)
    progress = meter.progress()
    session.phase, session.previous_phase = progress.phase, progress.previous
    session.phase_since, session.totals = progress.since, progress.totals
    session.error = session.final_answer = session.exit_reason = ""


def begin_turn_if_over(session: Session, now: datetime) -> None:
    """A turn that had ended begins anew; one that had not goes on where it was."""
    if session.phase in (Phase.IDLE, Phase.DONE, Phase.ERROR):
        enter_planning(session, now)


def settle(
    session: Session, status: Status, *, why: str = "", waiting_for: str = "", now: datetime | None = None
) -> None:
    """Put a session that no worker holds into `status`; a queued one is due at once."""
    fields = resting_fields(status, now=now or timezone.now(), why=why, waiting_for=waiting_for)
    for name, value in fields.items():
        setattr(session, name, value)
    if status == Status.QUEUED:
        session.attempt = 0


def commit(
    session: Session, kind: str, actor: Actor, reason: str = "", data: dict[str, Any] | None = None
) -> Session:
    """Write the locked session and the audit event of what was done to it."""
    if actor.bulk is not None:
        data = {**(data or {}), "bulk": actor.bulk}
        _tick_off(actor.bulk, session)
    session.position += 1
    session.version += 1
    session.change += 1
    session.updated_at = timezone.now()
    Event.objects.create(
        session=session,
        branch=session.branch,
        position=session.position,
        kind=kind,
        actor=actor.user,
        actor_name=actor.name,
        reason=reason,
        data=data or {},
    )
    session.save()
    return session


def _tick_off(act: int, session: Session) -> None:
    item = BulkItem.objects.filter(act=act, session=session, outcome=BulkItem.Outcome.PENDING)
    if not item.update(outcome=BulkItem.Outcome.DONE, done_at=timezone.now()):
        raise Moved("This bulk act has done it already, or was stopped.")


def given(what: str, text: str, max_length: int | None = None) -> str:
    """The text without blanks around it.

    :raises Invalid: if it is empty, too long, or no database could store it.
    """
    text = fit(what, text, max_length)
    if not text:
        raise Invalid(f"{what} is missing.")
    return text


def fit(what: str, text: str, max_length: int | None = None) -> str:
    """Like `given`, but may be empty."""
    text = text.strip()
    if "\x00" in text:
        raise Invalid(f"{what} contains NUL characters, which cannot be stored. Remove them.")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Invalid(f"{what} contains characters that are no valid Unicode. Remove them.") from None
    if max_length is not None and len(text) > max_length:
        raise Invalid(f"{what} is {len(text)} characters long; at most {max_length} fit.")
    return text


def storable(what: str, value: dict[str, Any] | None) -> dict[str, Any]:
    """The object as it is, {} for None.

    :raises Invalid: if it is no JSON object, or holds what no database could store.
    """
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise Invalid(f"{what} must be a JSON object, not {type(value).__name__}.")
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        raise Invalid(f"{what} must hold plain JSON values only, and no NaN.") from None
    for text in _texts(value):
        fit(what, text)
    return value


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield str(key)
            yield from _texts(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)
