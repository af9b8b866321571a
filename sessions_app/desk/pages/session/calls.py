"""Tool calls as they are shown: with their approval, and with their result unless that is very big."""

from dataclasses import dataclass
from typing import Any

from django.db.models import Case, F, JSONField, QuerySet, TextField, Value, When
from django.db.models.functions import Cast, Length, Substr

from sessions_app.access.masking import Mask
from sessions_app.desk.pages import values
from sessions_app.desk.pages.session.replacements import Replacement
from sessions_app.models import Approval, Branch, CallStatus, ToolCall

SMALL = 20_000

_MARKS = {
    CallStatus.PLANNED: ("○", "idle"),
    CallStatus.STARTED: ("◌", "running"),
    CallStatus.DOUBT: ("?", "doubt"),
    CallStatus.DONE: ("✓", "done"),
    CallStatus.FAILED: ("✕", "error"),
    CallStatus.REJECTED: ("⊘", "error"),
    CallStatus.SKIPPED: ("–", "idle"),
}


@dataclass(slots=True)
class CallItem:
    """One tool call. ``shown`` is its result ready to be read, None where there is none or it is too big."""

    row: ToolCall
    approval: Approval | None
    shown: values.Shown | None
    size: int
    beginning: str
    replaced: Replacement | None = None

    @classmethod
    def of(cls, row: ToolCall, mask: Mask) -> "CallItem":
        """``row`` is one of `calls_of`. What the mask hides is hidden in it, too."""
        annotated: Any = mask.row(row)
        return cls(
            row=annotated,
            approval=getattr(annotated, "approval", None),
            shown=values.show(annotated.small) if annotated.small is not None else None,
            size=annotated.size or 0,
            beginning=annotated.beginning,
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
    def said(self) -> str:
        """Its status in a word or two."""
        if self.row.status == CallStatus.PLANNED:
            return "waits for approval" if self.awaits_approval else "not begun"
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
    def edited(self) -> bool:
        return self.row.sent is not None and self.row.sent != self.row.arguments

    @property
    def failed(self) -> bool:
        return self.row.status in (CallStatus.FAILED, CallStatus.REJECTED)


def calls_of(branch: Branch, *, after: int = 0, upto: int | None = None) -> QuerySet[ToolCall]:
    """The visible tool calls with their approvals; a big result is left out, its size and beginning are not."""
    as_text = Cast("result", TextField())
    return (
        ToolCall.objects.visible_on(branch, after=after, upto=upto)
        .select_related("approval")
        .defer("result", "state")
        .annotate(
            size=Length(as_text),
            small=Case(
                When(size__lte=SMALL, then=F("result")),
                default=Value(None, JSONField()),
                output_field=JSONField(),
            ),
            beginning=Case(
                When(size__gt=SMALL, then=Substr(as_text, 1, 600)),
                default=Value(""),
                output_field=TextField(),
            ),
        )
    )
