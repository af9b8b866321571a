"""A cause of failures in words, taken from one of the sessions that failed for this cause."""

from dataclasses import dataclass
from uuid import UUID

from sessions_app.access.masking import Mask
from sessions_app.desk.pages.advice import AGENT_CHANGED, Advice, advice, what_failed
from sessions_app.desk.pages.session_agents import agent_title, load_agents
from sessions_app.history.failures import tool_that_failed
from sessions_app.models import BulkAction, Event, EventKind, Session

_FAILURES = (EventKind.FAILED, EventKind.GAVE_UP, EventKind.CHANGED)
GONE = "a cause that no session has any more"


@dataclass(frozen=True, slots=True)
class NamedCause:
    """``name``: ``HTTP 400 from the model, Shop desk``. ``advice``: what helps; None where no session has the cause."""

    name: str
    advice: Advice | None


def read_cause(key: str, mask: Mask, *, bulk: BulkAction | None = None) -> NamedCause:
    """Of a key of `sessions_app.history.failures`, masked. At most three queries, and three more for one that is gone.

    The advice is that for who may do everything: see `Advice.for_actor`.

    :param bulk: A bulk action on the sessions that had the cause: it names one that no session has any more.
    """
    try:
        failed = Session.objects.filter(failure=UUID(key)).order_by("updated_at", "pk")
    except ValueError:
        return NamedCause(GONE, None)
    sessions = mask.rows(failed[:1])
    load_agents(sessions)
    for session in sessions:
        what_helps = advice_for(session)
        if what_helps is not None:
            return NamedCause(f"{what_helps.what}, {agent_title(session)}", what_helps)
    return NamedCause(_name_before(bulk, mask) if bulk is not None else GONE, None)


def _name_before(bulk: BulkAction, mask: Mask) -> str:
    """The cause that the first session of a bulk action had when that started, as the audit trail tells it."""
    items = mask.rows(bulk.items.select_related("session").order_by("pk")[:1])
    for item in items:
        events = Event.objects.filter(
            session=item.session_id, kind__in=_FAILURES, created_at__lte=bulk.created_at
        )
        load_agents([item.session])
        for event in mask.rows(events.order_by("-position")[:1]):
            tool = str(event.data.get("tool") or "") if isinstance(event.data, dict) else ""
            what = AGENT_CHANGED if event.kind == EventKind.CHANGED else what_failed(event.reason, tool)
            return f"{what}, {agent_title(item.session)}" if what else GONE
    return GONE


def advice_for(session: Session) -> Advice | None:
    """What helps against the failure of a masked session. At most one query."""
    return advice(session, tool_that_failed(session) if session.is_failed else "")
