"""Looking at a value that is hidden: reading only, but on record like an act."""

from uuid import UUID

from django.db import transaction

from sessions_app.access.roles import Actor
from sessions_app.actions.base import fit, given, lock, require
from sessions_app.models import Event, Session


@transaction.atomic(durable=True)
def reveal(*, actor: Actor, session_id: UUID | str, what: str, reason: str = "") -> Session:
    """Write down that somebody has asked to see hidden values; show them once this returns.

    Nobody else's page is out of date by it: the session's version stays.

    :param what: Where the values are, for whoever reads the audit trail: ``call 17``, ``state at checkpoint 4``.
    """
    require(actor, "reveal")
    what = given("What to reveal", what, 200)
    reason = fit("The reason", reason)
    session = lock(session_id)
    session.position += 1
    session.change += 1
    Event.objects.create(
        session=session,
        branch=session.branch,
        position=session.position,
        kind="revealed",
        actor=actor.user,
        actor_name=actor.name,
        reason=reason,
        data={"what": what},
    )
    session.save(update_fields=["position", "change"])
    return session
