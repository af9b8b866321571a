"""Actions that change nothing about a session but are recorded: notes for colleagues, and revealing hidden values."""

from uuid import UUID

from sessions_app.access import typed
from sessions_app.access.roles import Actor
from sessions_app.action_list import NOTE
from sessions_app.actions.base import (
    check,
    commit_beside,
    in_one_transaction,
    lock,
    require,
    require_permission,
    required_text,
)
from sessions_app.actions.repeats import take_up
from sessions_app.models import EventKind, Session, StaffPermission


@in_one_transaction
def note(*, actor: Actor, session_id: UUID | str, text: str, request_id: UUID | str | None = None) -> Session:
    """Add a note for colleagues. The agent does not read it, and drawn pages stay valid.

    :param request_id: A UUID, a new one for each request. If it comes again, no second note is added.
    """
    require(actor, NOTE)
    text = required_text("The note", text, typed.REASON_CHARACTERS)
    session = lock(session_id)
    if take_up(request_id, session.pk, NOTE.event, actor, text=text) is not None:
        return session
    check(session, NOTE)
    return commit_beside(session, NOTE.event, actor, text)


@in_one_transaction
def reveal(*, actor: Actor, session_id: UUID | str, what: str) -> Session:
    """Record that a person has asked to see hidden values; show them once this returns. Drawn pages stay valid.

    :param what: Where the values are, for readers of the audit trail: ``call 17``, ``state at checkpoint 4``.
    """
    require_permission(actor, StaffPermission.REVEAL)
    what = required_text("What to reveal", what, 200)
    return commit_beside(lock(session_id), EventKind.REVEALED, actor, data={"what": what})
