"""Requests that come twice: a form that the browser sends again, or a program that tries again after a time-out.

Whoever sends a request gives it an id, as in https://google.aip.dev/155. What is refused leaves its id free.
"""

from uuid import UUID

from sessions_app.access.errors import Invalid
from sessions_app.models import EventKind, HandledRequest, Session


def handled(request_id: UUID | None, session: Session, kind: EventKind) -> Session | None:
    """The session for which this request was carried out before; None the first time, and without an id.

    The id is recorded with the caller's transaction. One that another transaction is recording is waited for.

    :param session: The session that the request is about: the locked one, or one that is about to be started.
    :raises Invalid: if the id is that of another request.
    """
    if request_id is None:
        return None
    request, is_new = HandledRequest.objects.get_or_create(
        pk=request_id, defaults={"session_id": session.pk, "kind": kind}
    )
    if is_new:
        return None
    if request.kind != kind or (kind != EventKind.STARTED and request.session_id != session.pk):
        raise Invalid(
            f"The request id {request_id} was used for another request. Give each request a new one."
        )
    return request.session
