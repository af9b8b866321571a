"""What every action has in common: check and lock first, then write, then commit with an audit event.

An action asks in this order: may this actor do it (`Forbidden`), is the request complete (`Invalid`), is there such a
session (`NotFound`), can it be locked now (`Locked`), is it still the one that the person saw (`Moved`), and does its
state allow it (`Refused`). A request that was carried out before is answered before what may have changed since is
asked, see `repeats`. After any of these errors nothing has changed. From `lock` on, the session's row is locked
until the transaction ends.
"""

from collections.abc import Callable
from datetime import datetime
from functools import wraps
from typing import Any, ParamSpec, Protocol, TypeVar
from uuid import UUID

from django.db import Error, connection
from django.db.models import QuerySet
from django.utils import timezone

from agentstate.articles import an
from agentstate.domain.phases import AgentPhase
from agentstate.durable.progress import Meter
from agentstate.durable.records import Progress
from sessions_app import locks
from sessions_app.access import typed
from sessions_app.access.action import Action
from sessions_app.access.errors import Forbidden, Invalid, Locked, Moved, NotFound, Refused, TakesNoWrites
from sessions_app.access.roles import Actor, check_actor
from sessions_app.models import (
    Branch,
    BulkItem,
    EventKind,
    Phase,
    Session,
    StaffPermission,
    Status,
    record_next_event,
)
from sessions_app.models.compiled import compiled
from sessions_app.models.later import update_later
from sessions_app.unavailable import takes_no_writes
from sessions_app.wake import compare_later, wake

P = ParamSpec("P")
T = TypeVar("T")


class ReasonAction(Protocol):
    """The function of an action that asks for nothing but a reason."""

    def __call__(
        self, *, actor: Actor, session_id: UUID | str, reason: str, expected_version: int | None = None
    ) -> Session: ...


# The functions of the actions that ask for nothing but a reason: how forms, bulk actions, the admin and the command
# line call them.
BY_REASON: dict[Action, ReasonAction] = {}


# The functions of the actions with `Action.bulk_fields`, which they take by these names besides the reason.
BY_FIELDS: dict[Action, Callable[..., Session]] = {}


def in_one_transaction(function: Callable[P, T]) -> Callable[P, T]:
    """Run the function of an action in one transaction, which waits for locks only as long as a person may.

    :raises Locked: if the wait timed out, or the database takes no writes; on SQLite also before the function is
        called.
    """

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            with locks.transaction_that_waits(locks.wait_seconds(), durable=True):
                return function(*args, **kwargs)
        except Error as error:
            if takes_no_writes(error):
                raise TakesNoWrites from error
            if not locks.is_timeout(error):
                raise
            raise Locked(_why_locked(kwargs.get("session_id"))) from error

    return run


def _why_locked(session_id: Any) -> str:
    what, holder = "The session", "another request"
    if connection.vendor == "sqlite":
        what, holder = "The database", "another process"
    elif session_id is None:
        what = "What this changes"
    elif worker := Session.objects.filter(pk=session_id, status=Status.RUNNING).values_list("worker").first():
        holder = f"its worker {worker[0]}"
    return (
        f"{what} is locked by {holder}, which has not finished writing. Nothing has changed; "
        f"try again in {locks.retry_seconds()} s."
    )


def asks_reason(action: Action) -> Callable[[Callable[[Session, Actor, str], Session]], ReasonAction]:
    """Make the function of an action that asks for nothing but a reason, and add it to `BY_REASON`.

    The decorated function is given the locked session, the actor and the reason, once all checks have passed. It
    writes, and returns what `commit` returns.
    """

    def decorate(write: Callable[[Session, Actor, str], Session]) -> ReasonAction:
        @wraps(write)
        @in_one_transaction
        def run(
            *, actor: Actor, session_id: UUID | str, reason: str, expected_version: int | None = None
        ) -> Session:
            require(actor, action)
            reason = required_reason(reason)
            session = lock(session_id, expected_version)
            check(session, action)
            return write(session, actor, reason)

        BY_REASON[action] = run
        return run

    return decorate


def require(actor: Actor, action: Action) -> None:
    """
    :raises Forbidden: if the actor lacks the permission for the action.
    :raises TypeError: for what is no actor.
    """
    check_actor(actor)
    if lacking := action.lacking(actor):
        raise Forbidden(lacking)


def require_permission(actor: Actor, permission: StaffPermission) -> None:
    """Like `require`, for what is no `Action`."""
    check_actor(actor)
    if lacking := actor.lacks(permission):
        raise Forbidden(lacking)


def lock(session_id: UUID | str, expected_version: int | None = None) -> Session:
    """The session with its branch, locked until the transaction ends."""
    try:
        pk = UUID(str(session_id))
    except ValueError:
        raise NotFound(f"There is no session {session_id}.") from None
    session = _locked.first(pk)
    if session is None:
        raise NotFound(f"There is no session {session_id}.")
    compare(session, expected_version)
    if session.branch is None and session.branch_id is not None:
        # Who waited for the lock while the session was put on a new branch: PostgreSQL reads only the row that was
        # locked anew, and the new branch is not in what it saw before.
        session.branch = Branch.objects.get(pk=session.branch_id)
    session.keep_stored()
    return session


@compiled
def _locked(session_id: UUID) -> QuerySet[Session]:
    # The branch cannot be locked along: PostgreSQL refuses that for a nullable join.
    return Session.objects.select_for_update(of=("self",)).select_related("branch").filter(pk=session_id)


def compare(session: Session, expected_version: int | None) -> None:
    """:raises Moved: if the session is not at the version that the person saw."""
    if expected_version is not None and session.version != expected_version:
        raise Moved("The session has changed since this page was loaded. Check it again, then decide.")


def check(session: Session, action: Action, **rows: Any) -> None:
    """Refuse what the session's state does not allow. ``rows`` are what `Action.impossible` takes.

    :raises Refused: with the reason.
    """
    reason = action.impossible(session, **rows)
    if reason:
        raise Refused(reason)


def enter_planning(session: Session, now: datetime) -> None:
    """Begin a turn, or the next attempt after an error, as the state machine allows; counted in the totals."""
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
    """Begin a new turn if the last one has ended; an unfinished one continues where it was."""
    if session.phase in (Phase.IDLE, Phase.DONE, Phase.ERROR):
        enter_planning(session, now)


def count_ended_call(session: Session) -> None:
    """Count a call that a person has ended, as a run counts those that it ends."""
    session.totals = {**session.totals, "tool_calls": session.totals.get("tool_calls", 0) + 1}


def set_status(
    session: Session, status: Status, *, why: str = "", waiting_for: str = "", now: datetime | None = None
) -> None:
    """Put a session that no worker runs into `status`; a queued one is due at once."""
    session.rest(status, now=now or timezone.now(), why=why, waiting_for=waiting_for)


def queue(session: Session, now: datetime | None = None) -> None:
    """Make the session due, and wake a worker once this is committed."""
    set_status(session, Status.QUEUED, now=now)
    wake(session.pk)


def commit(
    session: Session,
    kind: EventKind,
    actor: Actor,
    reason: str = "",
    data: dict[str, Any] | None = None,
    *,
    changed_at: datetime | None = None,
) -> Session:
    """Write the locked session and the audit event of what was done to it. Pages drawn before are out of date.

    :param changed_at: Since when the session is as it is, if not since now.
    """
    if actor.bulk is not None:
        data = {**(data or {}), "bulk": actor.bulk}
        _mark_done(actor.bulk, session)
    session.outdate_pages(changed_at or timezone.now())
    if session.has_changed("branch_id") and session.status not in (Status.QUEUED, Status.RUNNING):
        compare_later(session.pk)  # no run of it ends, after which a worker would do so
    _record(session, kind, actor, reason, data)
    session.save_changes()
    return session


def commit_beside(
    session: Session, kind: EventKind, actor: Actor, reason: str = "", data: dict[str, Any] | None = None
) -> Session:
    """Write only the audit event of something that changes nothing about the session: drawn pages stay valid."""
    _record(session, kind, actor, reason, data)
    update_later(session, ("position", "change"))
    return session


def _record(
    session: Session, kind: EventKind, actor: Actor, reason: str, data: dict[str, Any] | None
) -> None:
    record_next_event(session, kind, actor_name=actor.name, actor=actor.user, reason=reason, data=data)


def _mark_done(bulk_id: int, session: Session) -> None:
    item = BulkItem.objects.filter(bulk_action=bulk_id, session=session, outcome=BulkItem.Outcome.PENDING)
    if not item.update(outcome=BulkItem.Outcome.DONE, done_at=timezone.now()):
        raise Moved("This bulk action has done it already, or was stopped.")


def required_text(
    what: str, text: str, max_length: int | None = None, *, most_bytes: int | None = typed.MESSAGE_BYTES
) -> str:
    """The text without blanks around it.

    :raises Invalid: if it is no text, is empty or too long, or cannot be stored.
    """
    text = optional_text(what, text, max_length, most_bytes=most_bytes)
    if not text:
        raise Invalid(f"{what} is missing.")
    return text


def optional_text(
    what: str, text: str, max_length: int | None = None, *, most_bytes: int | None = typed.MESSAGE_BYTES
) -> str:
    """Like `required_text`, but it may be empty."""
    if not isinstance(text, str):
        raise Invalid(f"{what} must be a text, not {an(text)}.")
    text = text.strip()
    typed.check_text(what, text, most_bytes=most_bytes)
    if max_length is not None and len(text) > max_length:
        raise Invalid(f"{what} is {len(text)} characters long; at most {max_length} are allowed.")
    return text


def required_reason(reason: str) -> str:
    """The reason of an action without blanks around it.

    :raises Invalid: if it is empty or too long, or cannot be stored.
    """
    return required_text("The reason", reason, typed.REASON_CHARACTERS)


def optional_reason(reason: str) -> str:
    """Like `required_reason`, but it may be empty."""
    return optional_text("The reason", reason, typed.REASON_CHARACTERS)


def required_result(text: str) -> str:
    """What a person gives as the result of a call. It may be as long as JSON may.

    :raises Invalid: if it is empty, too long, or cannot be stored.
    """
    return required_text("The result", text, most_bytes=typed.JSON_BYTES)


def optional_result(text: str) -> str:
    """Like `required_result`, but it may be empty."""
    return optional_text("The result", text, most_bytes=typed.JSON_BYTES)


def json_object(what: str, value: dict[str, Any] | None) -> dict[str, Any]:
    """The object as it is, {} for None.

    Each of its values may be as deep as JSON may, since each may have been typed by itself.

    :raises Invalid: if it is not a JSON object, is beyond the limits, or holds what cannot be stored.
    """
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise Invalid(f"{what} must be a JSON object, not {an(value)}.")
    typed.check_json(what, value, most_depth=typed.JSON_DEPTH + 1)
    return value
