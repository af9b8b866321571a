"""A cause of failures in words, as one of the sessions that failed for it tells it."""

from dataclasses import dataclass
from uuid import UUID

from sessions_app.access.masking import Mask
from sessions_app.desk.pages.advice import Advice, advice
from sessions_app.desk.pages.session_agents import agent_title, load_agents
from sessions_app.history.failures import tool_that_failed
from sessions_app.models import Phase, Session, Status

GONE = "a cause that no session has now"


@dataclass(frozen=True, slots=True)
class NamedCause:
    """``name``: ``HTTP 400 from the model, Shop desk``. ``advice``: what helps; None where no session has the cause."""

    name: str
    advice: Advice | None


def read_cause(key: str, mask: Mask) -> NamedCause:
    """Of a key of `sessions_app.history.failures`, masked. At most three queries."""
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
    return NamedCause(GONE, None)


def advice_for(session: Session) -> Advice | None:
    """What helps against the failure of a masked session. At most one query."""
    has_failed = session.status == Status.IDLE and session.phase == Phase.ERROR
    return advice(session, tool_that_failed(session) if has_failed else "")
