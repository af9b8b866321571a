"""Pages that grow by themselves: how often they ask for what is new, and the answer while nothing is."""

from collections.abc import Callable
from functools import wraps
from uuid import UUID

from django.http import HttpRequest, HttpResponse
from django.utils import timezone

from sessions_app.access.typed import whole_number
from sessions_app.desk import live_key
from sessions_app.desk.context import Request
from sessions_app.models import Session, Status

SECONDS = {Status.RUNNING: 1, Status.QUEUED: 1, Status.WAITING: 10, Status.PAUSED: 10}


def poll(request: Request, session: Session) -> dict[str, int | str] | None:
    """What a page of the session sends with each poll, and how often; None while nothing can happen by itself."""
    seconds = SECONDS.get(Status(session.status))
    if seconds is None:
        return None
    return {"seconds": seconds, "after": session.change, "key": live_key.make(request, session.pk)}


def unless_unchanged(
    view: Callable[[HttpRequest, UUID], HttpResponse],
) -> Callable[[HttpRequest, UUID], HttpResponse]:
    """A view that answers 204 to a poll while its session is unchanged, which costs one small query.

    The key stands for the login; all that it gives away is that nothing has changed.
    """

    @wraps(view)
    def polled(request: HttpRequest, session_id: UUID) -> HttpResponse:
        after = whole_number(request.GET.get("after", ""))
        if request.method == "GET" and after is not None:
            key = request.GET.get("key", "")
            if live_key.change_of(request, session_id, key, now=timezone.now()) == after:
                return HttpResponse(status=204)
        return view(request, session_id)

    return polled
