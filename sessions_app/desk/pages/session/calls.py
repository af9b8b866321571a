"""A tool call as it is shown: with its approval, and with its result unless that is very big. No queries."""

from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

from django.utils import timezone

from sessions_app.access import shown
from sessions_app.access.masking import Mask
from sessions_app.desk.pages.replacements import Replacement
from sessions_app.desk.pages.summary import changes_of, formats_of
from sessions_app.desk.pages.values import ReadableValue, readable
from sessions_app.history import from_state
from sessions_app.models import Approval, CallStatus, RegisteredAgent, ToolCall
from sessions_app.wording import arguments

_MARKS = {
    CallStatus.PLANNED: ("○", "idle"),
    CallStatus.STARTED: ("◌", "running"),
    CallStatus.DOUBT: ("?", "doubt"),
    CallStatus.DONE: ("✓", "done"),
    CallStatus.FAILED: ("✕", "error"),
    CallStatus.REJECTED: ("⊘", "error"),
    CallStatus.SKIPPED: ("–", "idle"),
}


@dataclass(frozen=True, slots=True)
class CallFacts:
    """What is known of a call besides its values. ``read_on``: times of another day show their date."""

    key: int
    call_id: str
    idempotency_key: str
    attempt: int
    asked_at: datetime
    started_at: datetime | None
    worker: str
    ended_at: datetime | None
    status: str
    read_on: date


@dataclass(slots=True)
class CallItem:
    """One tool call, masked.

    shown: its result, None where there is none or it is too big to be read with the others.
    agent: that of the session, by whose policies the arguments are shown.
    size: of the result as JSON text, in characters; ``beginning`` is that of one that is too big.
    given_id: that of the call as it is stored, by which a breakpoint names it; it is not shown.
    """

    row: ToolCall
    approval: Approval | None
    shown: ReadableValue | None
    size: int = 0
    beginning: str = ""
    replaced: Replacement | None = None
    agent: RegisteredAgent | None = None
    given_id: str = ""

    @classmethod
    def of(cls, row: ToolCall, mask: Mask, agent: RegisteredAgent | None) -> "CallItem":
        """``row`` is one of `without_big_results`."""
        copy: Any = mask.row(row)
        beginning: str = copy.beginning
        return cls(
            row=copy,
            approval=getattr(copy, "approval", None),
            shown=readable(copy.small) if copy.small is not None else None,
            size=copy.size or 0,
            beginning=shown.beginning(mask, beginning) if beginning else "",
            agent=agent,
            given_id=row.call_id,
        )

    @classmethod
    def whole(cls, row: ToolCall, mask: Mask, agent: RegisteredAgent | None) -> "CallItem":
        """With its result, however big. ``row`` is loaded with its approval."""
        copy = mask.row(row)
        return cls(
            row=copy,
            approval=getattr(copy, "approval", None),
            shown=readable(copy.result) if copy.result is not None else None,
            agent=agent,
            given_id=row.call_id,
        )

    @property
    def position(self) -> int:
        return self.row.position

    @property
    def facts(self) -> CallFacts:
        row = self.row
        return CallFacts(
            key=row.pk,
            call_id=row.call_id,
            idempotency_key=row.idempotency_key,
            attempt=row.attempt,
            asked_at=row.asked_at,
            started_at=row.started_at,
            worker=row.worker,
            ended_at=row.ended_at,
            status=CallStatus(row.status).label,
            read_on=timezone.localdate(),
        )

    @property
    def mark(self) -> str:
        return _MARKS[CallStatus(self.row.status)][0]

    @property
    def tone(self) -> str:
        if self.awaits_approval:
            return "waiting"
        return _MARKS[CallStatus(self.row.status)][1]

    @property
    def status_label(self) -> str:
        if self.row.status == CallStatus.PLANNED:
            return "waits for approval" if self.awaits_approval else "not started"
        return CallStatus(self.row.status).label

    @property
    def awaits_approval(self) -> bool:
        return (
            self.row.status == CallStatus.PLANNED and self.approval is not None and not self.approval.decision
        )

    @property
    def in_doubt(self) -> bool:
        return self.row.status == CallStatus.DOUBT

    @property
    def ran(self) -> dict[str, object]:
        return self.row.ran_with

    @property
    def error(self) -> str:
        """Its error, "" where the note of its approval says it already: the words in which a person rejected it."""
        error: str = self.row.error
        said = self.approval.message if self.approval is not None else ""
        return "" if self.row.status == CallStatus.REJECTED and said and said in error else error

    @property
    def edited(self) -> bool:
        return bool(self.row.changed_arguments)

    @property
    def changes(self) -> str:
        """See `changes_of`."""
        return changes_of(self.agent, self.row)

    @property
    def from_state(self) -> dict[str, object]:
        """What the request for its approval showed of the State: see `history.from_state`."""
        return from_state.of_call(self.row)

    @property
    def arguments(self) -> str:
        """Those that ran, in one line: ``claim="CLM-1042", amount=€450.00``."""
        return arguments(self.ran, 160, formats_of(self.agent, self.row.tool))

    @property
    def edited_by_person(self) -> bool:
        return self.approval is not None and self.approval.edited is not None
