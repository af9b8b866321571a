"""The cause of a failure: what sessions that failed for one reason have in common.

A cause is the agent, the tool whose failure ended the turn, and of the masked text the type of the exception, the HTTP
status, and the text without numbers and ids. Its key is stored with the failure (`Session.failure`), so that such
sessions are found together. A session whose agent has changed has a cause, too.
"""

import re
from collections.abc import Collection, Mapping
from hashlib import sha256
from typing import Any
from uuid import UUID

from django.db.models import OuterRef, QuerySet, Subquery

from sessions_app.access.masking import HIDDEN, Mask
from sessions_app.models import Event, EventKind, Session, Status, WaitingFor
from sessions_app.models.compiled import compiled

# ``BadRequestError: ...``, also within a sentence such as "The model failed 5 times, at last with Timeout: ...".
_EXCEPTION = re.compile(r"(?:^|with |: )((?:[A-Za-z_]\w*\.)*[A-Z]\w*): ")
_HTTP_STATUS = re.compile(
    r"\b(?:HTTP|status|code|Error)\b\D{0,12}\b([45]\d\d)\b|: ([45]\d\d) [A-Z]", re.IGNORECASE
)
# Numbers, and words that a digit makes an id: CLM-1042, req_7f3a.
_ID = re.compile(r"[\w.-]*\d[\w.-]*|\b[0-9a-f]{8,}\b")


def exception_type(text: str) -> str:
    """The last type of an exception that the text of a failure names; "" for none."""
    names: list[str] = _EXCEPTION.findall(text)
    return names[-1] if names else ""


def http_status(text: str) -> int | None:
    """The HTTP status of an error, as the text of a failure names it."""
    match = _HTTP_STATUS.search(text)
    return int(match[1] or match[2]) if match else None


def cause_key(agent: str, tool: str, text: str, *, changed: bool = False) -> UUID:
    """The same for failures of one cause. ``tool`` is "" where no tool's failure ended the turn.

    :param changed: The session waits since its agent has changed, which the text says, too.

    Everyone may see the key, in links, and could find what is hidden by trying: nothing that is hidden enters it.
    """
    mask = Mask.configured()
    # The fields of a session that hold the text.
    shown = HIDDEN if any(map(mask.hides_key, ("error", "why"))) else mask.text(text)
    general = " ".join(_ID.sub("#", shown).split())
    parts = [agent, mask.tool(tool), exception_type(shown), str(http_status(shown)), general[:500]]
    if changed and HIDDEN in shown:
        parts.append(WaitingFor.CHANGED)
    return UUID(bytes=sha256("\n".join(parts).encode()).digest()[:16])


def failure_of(session: Session) -> UUID | None:
    """The key of the cause for which the session has failed, or waits for another attempt; None if it has not.

    One query if it has failed.
    """
    match session.status:
        case Status.WAITING if session.waiting_for in (WaitingFor.RETRIES, WaitingFor.CHANGED):
            return cause_key(
                session.agent, "", session.why, changed=session.waiting_for == WaitingFor.CHANGED
            )
        case _ if session.is_failed:
            return cause_key(session.agent, tool_that_failed(session), session.error)
    return None


def tool_that_failed(session: Session) -> str:
    """The tool whose failure ended the turn of a failed session, "" if none did. One query."""
    return tool_of(newest_failure(session))


def tool_of(failure: Mapping[str, Any]) -> str:
    """The tool whose failure is on record, as its name is shown; "" for none."""
    return Mask.configured().tool(str(failure.get("tool") or ""))


def newest_failure(session: Session) -> Mapping[str, Any]:
    """What is on record of the failure that ended the turn of a failed session; empty where nothing is.

    A session has failed only on the branch on which it ran: what failed on another one is not its failure once an undo
    has left that. The branch is that of the given object, which may not be saved yet. One query.
    """
    data = _failures_on.first(session.branch_id)
    return data if isinstance(data, dict) else {}


@compiled
def _failures_on(branch: int | None) -> QuerySet[Event, Any]:
    """The data of the newest."""
    failures = Event.objects.filter(branch=branch, kind=EventKind.FAILED)
    return failures.order_by("-position").values_list("data", flat=True)[:1]


def newest_failures(sessions: Collection[UUID]) -> dict[UUID, dict[str, Any]]:
    """As `newest_failure`, of each of these sessions as it is stored, by their keys.

    One query, if there are any sessions.
    """
    rows = _newest_failures(tuple(set(sessions))) if sessions else []
    return {session: data if isinstance(data, dict) else {} for session, data in rows}


@compiled
def _newest_failures(sessions: tuple[UUID, ...]) -> QuerySet[Session, tuple[Any, ...]]:
    failures = Event.objects.filter(branch=OuterRef("branch"), kind=EventKind.FAILED).order_by("-position")
    rows = Session.objects.filter(pk__in=sessions).order_by()
    return rows.values_list("pk", Subquery(failures.values("data")[:1]), named=False)
