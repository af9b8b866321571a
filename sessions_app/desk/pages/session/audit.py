"""The audit trail of a session: what people and the system did on every branch, in either order."""

from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

from django.db.models import QuerySet

from sessions_app.desk.pages.session.breakpoints import breakpoint_text
from sessions_app.desk.pages.session.context import SessionContext
from sessions_app.desk.pages.summary import ShownArgument, changes_of, published_tool, shown_arguments
from sessions_app.models import Event, EventKind, ToolCall
from sessions_app.models.compiled import compiled

PAGE = 100

_DECISIONS: Final = {
    "result": "It took effect, and a result was recorded.",
    "nothing": "It took effect, and returned no result.",
    "again": "It did not take effect: run again.",
    "skip": "Skipped.",
}


@dataclass(frozen=True, slots=True)
class AuditRow:
    """An event, the call that it is about with its arguments, and what else was recorded with it, in words."""

    event: Event
    call: ToolCall | None = None
    arguments: list[ShownArgument] = field(default_factory=list)
    changes: str = ""

    @property
    def details(self) -> list[str]:
        """Facts that the description of the event does not name, a sentence each; they may be of any version."""
        data = self.event.data if isinstance(self.event.data, dict) else {}
        facts = [
            _DECISIONS.get(str(data.get("decision")), ""),
            f"To {data['request']}." if data.get("request") else "",
            f"Revealed: {data['what']}."
            if self.event.kind == EventKind.REVEALED and data.get("what")
            else "",
            "Pre-approved for the rest of this session." if data.get("for_session") else "",
            "Confirmed to have seen that the tool already took effect, or may have."
            if data.get("effects_seen")
            else "",
            f"Worker {data['worker']}, attempt {data.get('attempt')}." if data.get("worker") else "",
            f"Bulk action {data['bulk']}." if data.get("bulk") else "",
        ]
        if self.event.kind in (EventKind.BREAKPOINT_SET, EventKind.BREAKPOINT_REMOVED):
            facts.append(f"Before {breakpoint_text(data)}.")
        return [fact for fact in facts if fact]

    @property
    def numbers(self) -> list[str]:
        """The checkpoint and the branches that it names, a sentence each, for who looks a row up."""
        data = self.event.data if isinstance(self.event.data, dict) else {}
        numbers = [f"Checkpoint #{data['checkpoint']}."] if data.get("checkpoint") else []
        if {"from_branch", "to_branch"} <= data.keys():
            numbers.append(f"From branch {data['from_branch']} to branch {data['to_branch']}.")
        elif self.event.branch is not None and self.event.branch.number > 1:
            numbers.append(f"On branch {self.event.branch.number}.")
        return numbers


@dataclass(frozen=True, slots=True)
class AuditPage:
    """``next`` is the position from which the page after this one goes on, None on the last."""

    rows: list[AuditRow]
    next: int | None


def newest_events(context: SessionContext, limit: int) -> list[Event]:
    """The newest events, masked. One query."""
    return _events(context, beyond=None, oldest_first=False, limit=limit)


def read_page(
    context: SessionContext, *, beyond: int | None = None, oldest_first: bool = False, limit: int = PAGE
) -> AuditPage:
    """A page of events on the far side of a position, in the order of reading. Two queries, one without calls.

    The session's agent is one more, if it is not loaded.
    """
    events = _events(context, beyond=beyond, oldest_first=oldest_first, limit=limit + 1)
    shown = events[:limit]
    calls = _calls_of(context, shown)
    return AuditPage(
        rows=[_row(context, event, calls.get(_call_key(event))) for event in shown],
        next=shown[-1].position if len(events) > limit else None,
    )


def _row(context: SessionContext, event: Event, call: ToolCall | None) -> AuditRow:
    if call is None:
        return AuditRow(event)
    tool = published_tool(context.session.registered_agent, call.tool, context.mask)
    changes = changes_of(context.session.registered_agent, call)
    return AuditRow(event, call, shown_arguments(tool, call.ran_with), changes)


def _events(context: SessionContext, *, beyond: int | None, oldest_first: bool, limit: int) -> list[Event]:
    rows = _rows(context.session.pk, beyond, oldest_first=oldest_first, limit=limit)
    return context.mask.rows(rows)


@compiled
def _rows(session_id: UUID, beyond: int | None, *, oldest_first: bool, limit: int) -> QuerySet[Event]:
    rows = Event.objects.filter(session=session_id).select_related("branch")
    if beyond is not None:
        rows = rows.filter(position__gt=beyond) if oldest_first else rows.filter(position__lt=beyond)
    return rows.order_by("position" if oldest_first else "-position")[:limit]


def _call_key(event: Event) -> Any:
    key = event.data.get("call") if isinstance(event.data, dict) else None
    return key if isinstance(key, int) else None


def _calls_of(context: SessionContext, events: list[Event]) -> dict[Any, ToolCall]:
    """The calls that the events are about, masked, by their keys."""
    keys = {key for event in events if (key := _call_key(event)) is not None}
    if not keys:
        return {}
    rows = ToolCall.objects.filter(pk__in=keys).select_related("approval").defer("result", "state")
    return {call.pk: call for call in context.mask.rows(rows)}
