"""Finding what was said in one session."""

from uuid import UUID

from django.http import HttpResponse
from django.utils import timezone
from django.views.decorators.http import require_GET

from sessions_app.access.masking import Mask
from sessions_app.desk.context import Request, desk, find, page
from sessions_app.desk.views.session import top_of
from sessions_app.finding import search

MOST = 50


@desk
@require_GET
def found(request: Request, session_id: UUID) -> HttpResponse:
    """The messages and calls in which the words of ``q`` occur, newest first."""
    mask = Mask.configured()
    session, branch = find(session_id, mask)
    sought = request.GET.get("q", "").strip()[:200]
    hits = search.hits(session, sought, mask=mask, limit=MOST)
    context = {"tab": "find", "sought": sought, "hits": hits, "cut": len(hits) == MOST}
    return page(
        request, "session/find.html", top_of(request, session, branch, timezone.now(), mask) | context
    )
