"""What a tool returned before, for a person who records the result of a call in doubt.

A result is shown as it is only if it is of the same session, or of the same customer with the same agent. Of any other
only the form is shown: names of fields and kinds of values, since its values are about somebody else.
"""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db.models import F, QuerySet

from sessions_app.desk.pages.session.context import SessionContext
from sessions_app.desk.pages.values import readable
from sessions_app.finding.keys import are
from sessions_app.models import Branch, CallStatus, Session, ToolCall

# A result is sought in so many of the customer's last sessions with the agent, and its form in so many of all those of
# the agent. Of a sample so many characters are shown.
RECENT = 200
SAMPLE = 600
# A key that may be a name of somebody is no name of a field.
_FIELD = re.compile(r"[a-z_][A-Za-z0-9_-]{0,39}", re.ASCII)
_FIELDS = 20


@dataclass(frozen=True, slots=True)
class Sample:
    """``text`` is masked. ``is_form``: it shows no value, since the result is about another customer."""

    tool: str
    text: str
    is_form: bool = False


def of_tools(context: SessionContext, tools: Iterable[str]) -> list[Sample]:
    """A sample of each of the tools of which there is one. At most four queries each."""
    found = (_sample(context, tool) for tool in tools)
    return [sample for sample in found if sample is not None]


def _sample(context: SessionContext, tool: str) -> Sample | None:
    session = context.session_row
    of_agent = Session.objects.filter(agent=session.agent)
    same = _recent(of_agent.filter(customer=session.customer)) if session.customer else []
    if (call := _newest(tool, [session.pk, *same])) is not None:
        return Sample(tool, readable(context.mask.row(call).result).text[:SAMPLE])
    call = _newest(tool, _recent(of_agent))
    form = _form(context.mask.row(call).result) if call is not None else None
    return (
        Sample(tool, json.dumps(form, indent=2)[:SAMPLE], is_form=True)
        if isinstance(form, dict | list)
        else None
    )


def _recent(sessions: QuerySet[Session]) -> list[UUID]:
    return list(sessions.order_by("-updated_at", "-id").values_list("pk", flat=True)[:RECENT])


def _newest(tool: str, sessions: Sequence[UUID]) -> ToolCall | None:
    """The newest call of the tool that has returned something in these sessions, which are few."""
    branches = Branch.objects.filter(session__in=Session.objects.filter(are(sessions)).values("pk"))
    calls = ToolCall.objects.filter(branch__in=branches, tool=tool, status=CallStatus.DONE, decided_by="")
    # Not in the order of an index: PostgreSQL would read the newest calls of all sessions to find one of these.
    return calls.exclude(result=None).order_by((F("pk") + 0).desc()).defer("state").first()


def _form(value: Any) -> Any:
    """``{"letter": "text", "pages": "number"}``: the names of the fields and the kinds of their values."""
    match value:
        case dict():
            fields = [key for key in value if _FIELD.fullmatch(str(key))]
            return {key: _form(value[key]) for key in fields[:_FIELDS]}
        case list():
            return [_form(item) for item in value[:1]]
        case bool():
            return "true or false"
        case int() | float():
            return "number"
        case None:
            return "nothing"
    return "text"
