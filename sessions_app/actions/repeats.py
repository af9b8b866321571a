"""Repeated requests: a form that is sent again, or a program that tries again after a timeout.

Whoever sends a request gives it an id, as in https://google.aip.dev/155. A request that is refused leaves its id free.
An id is kept as long as its session.
"""

import json
from hashlib import sha256
from typing import Any
from uuid import UUID

from sessions_app.access.errors import Invalid
from sessions_app.access.roles import Actor
from sessions_app.models import EventKind, HandledRequest, Session


def take_up(
    request_id: UUID | str | None, session_id: UUID, kind: EventKind, actor: Actor, **asked: Any
) -> Session | None:
    """Record with the caller's transaction that the request is carried out, unless it was before.

    A request with the same id that is being carried out by another transaction is waited for.

    :param session_id: Of the session that the request is about, or that it is about to start.
    :param asked: All that is asked for, as JSON. Of two requests with one id it must be the same, literally, and asked
        by the same actor.
    :returns: The session for which the request was carried out before; None the first time, and without an id.
    :raises Invalid: for what is no UUID or no JSON, and if the id is that of another request.
    """
    if request_id is None:
        return None
    try:
        key = UUID(str(request_id))
    except ValueError:
        raise Invalid(f"The request id must be a UUID, not {str(request_id)[:50]!r}.") from None
    if kind != EventKind.STARTED:
        asked["session"] = str(session_id)
    try:
        text = json.dumps([kind, actor.name, asked])
    except (TypeError, ValueError, RecursionError) as error:
        raise Invalid(f"The request cannot be written as JSON: {error}.") from None
    digest = sha256(text.encode()).hexdigest()
    request, is_new = HandledRequest.objects.get_or_create(
        pk=key, defaults={"session_id": session_id, "digest": digest}
    )
    if is_new:
        return None
    if request.digest != digest:
        raise Invalid(f"The request id {key} was used for another request. Give each request a new one.")
    return request.session
