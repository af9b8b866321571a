"""Pages that update themselves: how often they ask for what is new, and the answer when little or nothing is new."""

import math
from collections.abc import Callable
from datetime import datetime
from functools import wraps
from typing import Any
from uuid import UUID

from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.views.decorators.http import require_GET

from sessions_app.access.typed import whole_number
from sessions_app.desk import live_key
from sessions_app.desk.context import Request, render_page, session_context, staff_page, wants_part
from sessions_app.desk.pages.session.also_open import also_open, is_shown
from sessions_app.desk.pages.session.context import SessionContext
from sessions_app.desk.pages.session.partial_reply import PartialReply
from sessions_app.desk.views.news import is_offered
from sessions_app.finding import stuck
from sessions_app.models import Status
from sessions_app.watching import partial_replies

SECONDS = {Status.RUNNING: 1, Status.QUEUED: 1, Status.WAITING: 10, Status.PAUSED: 10}


def poll(request: Request, context: SessionContext, *, until: int | None = None) -> dict[str, Any] | None:
    """What a page of the session sends with each poll besides its key, and how often; None if nothing can happen.

    :param until: When the page has to be drawn again though nothing has happened: in seconds since 1970.
    """
    session, now = context.session, context.now
    seconds = SECONDS.get(Status(session.status))
    if seconds is None:
        return None
    stuck_from = stuck.stuck_from(session)
    if stuck_from is not None and stuck_from > now:
        is_stuck = math.ceil(stuck_from.timestamp())
        until = is_stuck if until is None else min(until, is_stuck)
    lease = session.lease_expires_at
    return {
        "seconds": seconds,
        "after": session.change,
        "until": until,
        "lost": "1" if lease is not None and lease < now else "",
        "listens": is_offered(request),
        # No stream tells of it: a page that has one asks by itself for this only.
        "asks_in": None if until is None else math.ceil(until - now.timestamp()),
    }


def unless_unchanged(
    view: Callable[[HttpRequest, UUID], HttpResponse], *, shows_reply: bool = True
) -> Callable[[HttpRequest, UUID], HttpResponse]:
    """A view that answers 204 to a poll while its session is unchanged, which costs one query.

    It is unchanged while nothing is committed, the reply that is being written is the one that the page shows, its
    lease has run out if it had when the page was drawn (``lost``), and ``until`` lies ahead: when the session becomes
    stuck, by the clock alone, or the page draws again what it kept.

    :param shows_reply: Whether the page shows the reply that is being written.

    The key stands for the login. All that it gives away by itself is that nothing has changed: what has, is for the
    user of the key, with the permissions that they have now.
    """

    @wraps(view)
    def polled(request: HttpRequest, session_id: UUID) -> HttpResponse:
        after = whole_number(request.GET.get("after", ""))
        if request.method == "GET" and after is not None:
            key, now = request.GET.get("key", ""), timezone.now()
            is_over = _is_over(request, now)
            # A page that listens asks when it was told of news, and hardly ever otherwise.
            likely = is_over or is_offered(request)
            watched = live_key.watched(request, session_id, key, now=now, with_permissions=likely)
            if watched is not None:
                if (
                    not is_over
                    and watched.change == after
                    and watched.is_lost == (request.GET.get("lost") == "1")
                    and (not shows_reply or _shows_newest_reply(request, session_id))
                ):
                    return HttpResponse(status=204)
                live_key.log_in(request, watched)
        return view(request, session_id)

    return polled


def _shows_newest_reply(request: HttpRequest, session_id: UUID) -> bool:
    return partial_replies.version_of(session_id) == request.GET.get("reply", "")


def _is_over(request: HttpRequest, now: datetime) -> bool:
    """Whether the page has to be drawn again though nothing has happened."""
    until = whole_number(request.GET.get("until", ""))
    return until is not None and now.timestamp() >= until


def only_the_reply(request: Request, context: SessionContext, partial: PartialReply) -> HttpResponse | None:
    """The answer to a poll where nothing is new but the reply that is being written; None where more is, or nothing."""
    is_committed = whole_number(request.GET.get("after", "")) != context.session_row.change
    is_shown = partial.version == request.GET.get("reply", "")
    if not wants_part(request) or is_committed or is_shown or _is_over(request, context.now):
        return None
    response = render_page(request, "session/live.html#reply", {"partial": partial})
    response["HX-Retarget"], response["HX-Reswap"] = "#reply", "outerHTML"
    return response


@require_GET
def also_open_line(request: HttpRequest, session_id: UUID) -> HttpResponse:
    """Who else has the session open: asked by each open page of it, which thereby says that it is open.

    While the page shows these people (``shown``), it is answered like `unless_unchanged`: with 204, by one query.
    """
    if key := request.GET.get("key", ""):
        viewer = live_key.viewer(request, session_id, key, now=timezone.now())
        if viewer is not None and is_shown(session_id, viewer, request.GET.get("shown", "")):
            return HttpResponse(status=204)
    return _also_open_line(request, session_id)


@staff_page
def _also_open_line(request: Request, session_id: UUID) -> HttpResponse:
    context = session_context(request, session_id)
    values = {
        "session": context.session,
        "also_open": also_open(context),
        "live_key": live_key.make(request, session_id),
    }
    return render_page(request, "session/base.html#also-open", values)
