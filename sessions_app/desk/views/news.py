"""The stream that tells a page of a session that there is news, instead of polling.

It is offered under ASGI only, where an open stream is a task on the event loop; under WSGI it would hold a thread. It
takes the key of the live page, and says less than the polls do that this key allows: only that something has changed,
the number of the last change, whether the session's lease has run out, and the ids of the users who have it open.
"""

from typing import TypeGuard
from uuid import UUID

from asgiref.sync import sync_to_async
from django.core.handlers.asgi import ASGIRequest
from django.db import Error, connections
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase, StreamingHttpResponse
from django.utils import timezone
from django.views.decorators.http import require_GET

from agentstate import request_end
from sessions_app.desk import live_key
from sessions_app.watching import news
from sessions_app.watching.streams import streams

RETRY_SECONDS = 30


def is_offered(request: HttpRequest) -> TypeGuard[ASGIRequest]:
    """Whether a page that answers this request may listen for news."""
    return isinstance(request, ASGIRequest) and news.are_told()


@require_GET
async def session_news(request: HttpRequest, session_id: UUID) -> HttpResponseBase:
    """The text/event-stream of a session's page.

    403 for a key that is not valid, 429 where there is no room, 503 while the server of the news is away.
    """
    if not is_offered(request) or not request_end.is_known(request.scope):
        raise Http404("This web server offers no streams.")
    key, login = request.GET.get("key", ""), request.session.session_key or ""

    def listener() -> int | None:
        return live_key.listener(request, session_id, key, now=timezone.now())

    def first_listener() -> int | None:
        try:
            return listener()
        except Error:
            return None
        finally:
            connections.close_all()  # the thread of an open stream lives as long as the stream

    user_id = await sync_to_async(first_listener)()
    if user_id is None:
        return _refused("The key of this page is no longer valid.", status=403)
    listeners = streams()
    if not await listeners.is_subscribed():
        return _refused("The notification server is unavailable.", status=503)
    # Taken last: from here on nothing waits, until the answer is on its way.
    place = listeners.take_place(login)
    if place is None:
        return _refused("All streams are in use.", status=429)
    request_end.at_end(request.scope, place.leave)
    return StreamingHttpResponse(
        listeners.stream(session_id, place, user_id, lambda: listener() is not None),
        content_type="text/event-stream",
        headers={"X-Accel-Buffering": "no"},  # nginx passes on each event at once
    )


def _refused(text: str, *, status: int) -> HttpResponse:
    """For a script, which then polls."""
    headers = {} if status == 403 else {"Retry-After": str(RETRY_SECONDS)}
    return HttpResponse(f"{text}\n", content_type="text/plain; charset=utf-8", status=status, headers=headers)
