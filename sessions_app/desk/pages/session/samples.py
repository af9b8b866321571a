"""What a tool returned before, for a person who records the result of a call in doubt.

A result is shown as it is only if it is of the same session, or of the same customer with the same agent. Of any other
only the form is shown: names of fields and kinds of values, since its values are about somebody else.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from django.db.models import Q, QuerySet

from sessions_app.desk.pages.session.context import SessionContext
from sessions_app.desk.pages.values import readable
from sessions_app.models import CallStatus, Session, ToolCall

# The form is sought in so many of the agent's last sessions, and of a sample so many characters are shown.
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
    """A sample of each of the tools of which there is one. At most two queries each."""
    found = (_sample(context, tool) for tool in tools)
    return [sample for sample in found if sample is not None]


def _sample(context: SessionContext, tool: str) -> Sample | None:
    session = context.session_row
    same = Q(branch__session=session.pk)
    if session.customer:
        same |= Q(branch__session__agent=session.agent, branch__session__customer=session.customer)
    calls = ToolCall.objects.filter(tool=tool, status=CallStatus.DONE, decided_by="").exclude(result=None)
    if (call := _newest(calls.filter(same))) is not None:
        return Sample(tool, readable(context.mask.row(call).result).text[:SAMPLE])
    recent = Session.objects.filter(agent=session.agent).order_by("-updated_at").values("pk")
    call = _newest(calls.filter(branch__session__in=recent[:RECENT]))
    form = _form(context.mask.row(call).result) if call is not None else None
    return (
        Sample(tool, json.dumps(form, indent=2)[:SAMPLE], is_form=True)
        if isinstance(form, dict | list)
        else None
    )


def _newest(calls: QuerySet[ToolCall]) -> ToolCall | None:
    return calls.order_by("-pk").defer("state").first()


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
