"""What a person decides by: what the customer said last before a call, and what the last tools found.

What an agent writes into its working memory is no finding.
At most five queries for any number of calls. Of each history only the rows directly before the call are read.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.db.models import Q, QuerySet, TextField
from django.db.models.functions import Cast, Length, Substr

from agentstate.names import MEMORY_TOOLS
from sessions_app.access.masking import Mask
from sessions_app.desk.pages.values import readable
from sessions_app.history.staff_notes import note_places
from sessions_app.models import Branch, CallStatus, Message, ToolCall
from sessions_app.wording import shorten

# So many positions before a call are looked at: some sixty steps for the customer's words, some eight for findings.
WORDS_WITHIN, FINDINGS_WITHIN = 400, 50
FINDINGS = 2
# Characters of a result as JSON text; a longer one is not read.
LONGEST_READ = 5_000
SHOWN = 160


@dataclass(frozen=True, slots=True)
class Finding:
    """``text`` is the tool's result in a few words, masked."""

    tool: str
    text: str


@dataclass(frozen=True, slots=True)
class Evidence:
    """``words`` are the customer's, or of the ``author`` among the staff; "" where there are none near the call."""

    words: str = ""
    author: str = ""
    findings: list[Finding] = field(default_factory=list)


Place = tuple[Branch, ToolCall]  # a call, and the branch whose history shows it


def of_calls(places: Sequence[Place], mask: Mask) -> dict[int, Evidence]:
    """By the keys of the calls."""
    messages = Message.objects.filter(role=Message.Role.USER)
    calls = (
        ToolCall.objects.filter(status=CallStatus.DONE).exclude(result=None).exclude(tool__in=MEMORY_TOOLS)
    )
    words_before = _before(places, messages, WORDS_WITHIN)
    calls_before = _before(places, calls, FINDINGS_WITHIN)
    texts = _texts((pks[:FINDINGS] for pks in words_before.values()), mask)
    findings = _findings((pks[:FINDINGS] for pks in calls_before.values()), mask)
    return {
        call.pk: Evidence(
            *next((texts[pk] for pk in words_before[call.pk][:FINDINGS] if pk in texts), ("", "")),
            [findings[pk] for pk in reversed(calls_before[call.pk][:FINDINGS]) if pk in findings],
        )
        for _, call in places
    }


def in_few_words(value: Any, limit: int = SHOWN) -> str:
    """A stored value on one line: its documents, its facts (``status active, limit 500``), or its text."""
    shown = readable(value)
    if shown.documents:
        return shorten(", ".join(f"“{document.title}”" for document in shown.documents), limit)
    return shorten(shown.line, limit)


def _before(places: Sequence[Place], rows: QuerySet[Any], within: int) -> dict[int, list[int]]:
    """The keys of the rows directly before each call, the last first. One query."""
    ranges = Q(pk__in=[])
    for branch, call in places:
        for pk, last in branch.segments():
            end = call.position if last is None else min(last, call.position)
            if end >= call.position - within:
                ranges |= Q(branch_id=pk, position__lte=end, position__gte=call.position - within)
    found = rows.filter(ranges).order_by("-position").values_list("pk", "branch_id", "position", named=False)
    near = list(found) if places else []
    return {
        call.pk: [
            pk
            for pk, at, position in near
            if call.position - within <= position < call.position and branch.sees(at, position)
        ]
        for branch, call in places
    }


def _texts(keys: Iterable[Sequence[int]], mask: Mask) -> Mapping[int, tuple[str, str]]:
    """What people wrote, and which of the staff did; not what the model is told of a decision in their name."""
    rows = list(Message.objects.filter(pk__in={pk for some in keys for pk in some}).defer("body"))
    notes = note_places(rows)
    own = [row for row in rows if (row.branch_id, row.position) not in notes]
    texts = {row.pk: (" ".join(row.text.split()), row.author) for row in mask.rows(own)}
    return {pk: (shorten(text, 2 * SHOWN), author) for pk, (text, author) in texts.items() if text}


def _findings(keys: Iterable[Sequence[int]], mask: Mask) -> Mapping[int, Finding]:
    as_text = Cast("result", TextField())
    rows: Any = (
        ToolCall.objects.filter(pk__in={pk for some in keys for pk in some})
        .annotate(length=Length(Substr(as_text, 1, LONGEST_READ + 1)))
        .filter(length__lte=LONGEST_READ)
        .defer("state")
    )
    return {row.pk: Finding(row.tool, in_few_words(row.result)) for row in mask.rows(rows)}
