"""The desk's first page: the queues, and one page of the chosen one."""

from datetime import datetime

from django.http import HttpResponse, QueryDict
from django.utils import timezone
from django.views.decorators.http import require_GET

from sessions_app.access.masking import Mask
from sessions_app.access.roles import Actor
from sessions_app.desk.context import Request, desk, page, queue_of, wants_part
from sessions_app.finding import queues, search, stuck
from sessions_app.finding.filters import SessionFilter
from sessions_app.finding.saved_views import views_for
from sessions_app.models import RegisteredAgent, Session
from sessions_app.wording import age, condition

SECONDS = 5


@desk
@require_GET
def sessions(request: Request) -> HttpResponse:
    """A queue. With ``seen`` it answers 204 unless a session has changed since: that is what a live list polls."""
    latest = Session.objects.order_by("-updated_at", "-id").values_list("updated_at", flat=True).first()
    mark = latest.isoformat() if latest else "none"
    if request.GET.get("seen") == mark:
        return HttpResponse(status=204)
    now = timezone.now()
    key = queue_of(request) or ("all" if request.GET.get("q") else "attention")
    sieve = SessionFilter(request.GET, user=request.user)
    after = request.GET.get("after", "")
    mask = Mask.configured()
    found = queues.page(key, now=now, where=sieve.where(), after=after)
    shown = mask.rows(found.sessions)
    titles = dict(RegisteredAgent.objects.values_list("key", "title"))
    kept = request.GET.copy()
    for name in ("seen", "after", "queue"):
        kept.pop(name, None)
    sought = str(sieve.cleaned_data.get("q") or "")
    context = {
        "sought": sought,
        "hits": search.first_hits(shown, sought, mask=mask),
        "queue": queues.BY_KEY[key],
        "counts": queues.counts(now),
        "rows": [_row(session, titles, now) for session in shown],
        "next": found.next,
        "after": after,
        "filter": sieve,
        "kept": "".join(f"&{pair}" for pair in kept.urlencode().split("&") if pair),
        "mark": mark,
        "seconds": SECONDS,
        "may_start": Actor.of(request.user).may("start"),
    }
    if wants_part(request):
        return page(request, "desk/sessions.html#list", context)
    own, others = views_for(request.user)
    asked = {"queue": key} | {name: value for name, value in kept.items() if value}
    views = [*own, *others]
    opened = next((view for view in views if QueryDict(view.query).dict() == asked), None)
    return page(request, "desk/sessions.html", context | {"views": views, "opened": opened})


def _row(session: Session, titles: dict[str, str], now: datetime) -> dict[str, object]:
    tone, label = condition(session, now)
    return {
        "session": session,
        "tone": tone,
        "label": label,
        "agent": titles.get(session.agent, session.agent),
        "why": stuck.why_halted(session, now) or session.why or session.error,
        "since": age(session.phase_since, now),
        "changed": age(session.updated_at, now),
    }
