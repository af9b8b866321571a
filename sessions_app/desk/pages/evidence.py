"""What a person decides by: what the customer said last before a call, and what the last tools found.

What a person corrected is shown as it was corrected. What an agent writes into its working memory is no finding.
At most seven queries for any number of calls. Of each history only the rows directly before the call are read.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

from django.db.models import JSONField, QuerySet, TextField
from django.db.models.functions import Cast, Coalesce, Length, Substr

from agentstate.durable.state.tags import as_plain_data
from agentstate.names import MEMORY_TOOLS
from sessions_app.access.errors import Invalid
from sessions_app.access.masking import HIDDEN, Mask
from sessions_app.access.typed import read_json
from sessions_app.desk.pages import excerpts, replacements
from sessions_app.desk.pages.excerpts import Excerpt, Style
from sessions_app.desk.pages.replacements import Replacement, Replacements
from sessions_app.desk.pages.summary import style_of_result
from sessions_app.history.staff_notes import note_places
from sessions_app.models import Branch, CallStatus, Message, RegisteredAgent, ToolCall
from sessions_app.models.compiled import compiled
from sessions_app.models.rows import Ranges, visible

# So many positions before a call are looked at: some sixty steps for the customer's words, some eight for findings.
WORDS_WITHIN, FINDINGS_WITHIN = 400, 50
FINDINGS = 2
# Characters that a card shows of the words and of a finding; the rest is opened.
WORDS_SHOWN, FINDING_SHOWN = 480, 320
# Characters of a result, or of a call's arguments, as JSON text; a longer one is not read.
LONGEST_READ = 5_000


@dataclass(frozen=True, slots=True)
class Finding:
    """``text`` is the tool's result, masked; ``corrected`` says by whom it was, "" if it was not."""

    tool: str
    text: Excerpt
    corrected: str = ""


@dataclass(frozen=True, slots=True)
class Evidence:
    """``words`` are the customer's, or of the ``staff``; empty where there are none near the call.

    ``corrected`` says by whom the words were corrected, "" if they were not.
    """

    words: Excerpt = field(default_factory=Excerpt)
    staff: str = ""
    corrected: str = ""
    findings: tuple[Finding, ...] = ()


Place = tuple[Branch, ToolCall]  # a call, and the branch whose history shows it


@dataclass(frozen=True, slots=True)
class _Row:
    """A message or a call near the call that is decided, with its ``arguments`` and the values in them."""

    pk: int
    position: int
    tool: str = ""
    arguments: Any = None
    values: frozenset[str] = frozenset()


def of_calls(
    places: Sequence[Place], mask: Mask, agents: Mapping[int, RegisteredAgent | None]
) -> dict[int, Evidence]:
    """By the keys of the calls, which are not masked: findings are chosen by what is shown of their arguments.

    :param agents: By the keys of the calls, the agents of their sessions, whose tools say how a finding is written.
    """
    after: dict[Branch, int] = {}
    for branch, call in places:
        after[branch] = min(after.get(branch, call.position), max(0, call.position - WORDS_WITHIN))
    replaced = replacements.on_each(after, mask)
    words = {
        call.pk: [row for row in rows if row.position not in replaced[branch.pk].rows][:FINDINGS]
        for (branch, call), rows in _before(places, _messages, WORDS_WITHIN)
    }
    calls = {
        call.pk: _chosen(call, rows, mask) for (_, call), rows in _before(places, _lookups, FINDINGS_WITHIN)
    }
    texts = _texts((row.pk for rows in words.values() for row in rows), mask)
    findings = _findings((row.pk for rows in calls.values() for row in rows), mask)
    # The calls of a page are of a few tools.
    style_of = cache(partial(style_of_result, mask=mask))
    return {
        call.pk: Evidence(
            *_words(words[call.pk], texts, replaced[branch.pk], call),
            _corrected(
                calls[call.pk],
                findings,
                replaced[branch.pk],
                call,
                partial(style_of, agents.get(call.pk)),
                mask,
            ),
        )
        for branch, call in places
    }


@compiled
def _messages(where: Ranges) -> QuerySet[Message, tuple[Any, ...]]:
    rows = Message.objects.within(where).filter(role=Message.Role.USER)
    return rows.order_by("-position").values_list("pk", "branch_id", "position")


@compiled
def _lookups(where: Ranges) -> QuerySet[ToolCall, tuple[Any, ...]]:
    """The calls that found something, with the arguments that they ran with as JSON text."""
    calls = (
        ToolCall.objects.within(where)
        .filter(status=CallStatus.DONE)
        .exclude(result=None)
        .exclude(tool__in=MEMORY_TOOLS)
    )
    ran = Cast(Coalesce("sent", "arguments", output_field=JSONField()), TextField())
    beginning = Substr(ran, 1, LONGEST_READ + 1)
    return calls.order_by("-position").values_list("pk", "branch_id", "position", "tool", beginning)


def _before(
    places: Sequence[Place], rows: Callable[[Ranges], Iterable[tuple[Any, ...]]], within: int
) -> Iterator[tuple[Place, list[_Row]]]:
    """The rows directly before each call, the last first. One query.

    :param rows: Asks for those in these ranges: keys, branches, positions, and of calls the tools and arguments.
    """
    ranges = {
        part
        for branch, call in places
        for part in visible(branch, after=max(0, call.position - within - 1), upto=call.position)
    }
    near = defaultdict[int, list[_Row]](list)
    for pk, branch_id, position, *of_call in rows(tuple(ranges)):
        tool, arguments = of_call or ("", "")
        read = _read(arguments)
        near[branch_id].append(_Row(pk, position, tool, read, frozenset(_values(read))))
    for branch, call in places:
        yield (
            (branch, call),
            [
                row
                for pk, last in reversed(branch.segments())
                for row in near[pk]
                if call.position - within <= row.position < call.position
                and (last is None or row.position <= last)
            ],
        )


def _read(arguments: str) -> Any:
    """The arguments, which are JSON text; None for what is too long to be read."""
    try:
        return read_json(arguments) if len(arguments) <= LONGEST_READ else None
    except Invalid:
        return None


def _values(value: Any) -> Iterator[str]:
    """The texts and numbers in a value."""
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _values(item)
    elif value not in (None, "") and not isinstance(value, bool):
        yield str(value)


def _shown_values(arguments: Any) -> frozenset[str]:
    """Those of masked arguments in which nothing is hidden."""
    return frozenset(value for value in _values(arguments) if HIDDEN not in value)


def _chosen(call: ToolCall, rows: Sequence[_Row], mask: Mask) -> list[_Row]:
    """The last look-ups about what the call is about, which are those that share a value of its arguments.

    Where there are fewer, the last of other tools: the same tool's other results are about something else. Hidden
    values choose nothing: what is shown would tell whether two of them are equal.
    """
    values = _shown_values(mask.row(call).ran_with)
    sharing = (row for row in rows if row.values & values)
    about = [row for row in sharing if _shown_values(mask.column("arguments", row.arguments)) & values]
    about = about[:FINDINGS]
    tools = {row.tool for row in about}
    others = [row for row in rows if row.tool not in tools]
    return sorted([*about, *others][:FINDINGS], key=lambda row: row.position)


def _texts(keys: Iterable[int], mask: Mask) -> Mapping[int, tuple[str, str]]:
    """What people wrote, and which of the staff did; not what the model is told of a decision in their name."""
    rows = _messages_with(tuple(set(keys)))
    notes = note_places(rows)
    own = [row for row in rows if (row.branch_id, row.position) not in notes]
    return {row.pk: (row.text, row.staff) for row in mask.rows(own) if row.text.strip()}


def _words(
    rows: Iterable[_Row], texts: Mapping[int, tuple[str, str]], replaced: Replacements, call: ToolCall
) -> tuple[Excerpt, str, str]:
    """The last words, who of the staff wrote them, and who corrected them."""
    for row in rows:
        if row.pk in texts:
            text, staff = texts[row.pk]
            correction = replaced.by_message.get(row.position)
            text = correction.text if correction else text
            return excerpts.of_text(text, WORDS_SHOWN), staff, _by(correction, call)
    return Excerpt(), "", ""


def _findings(keys: Iterable[int], mask: Mask) -> Mapping[int, ToolCall]:
    """The calls, masked, of those whose result is not too long to be read."""
    return {row.pk: row for row in mask.rows(_calls_with(tuple(set(keys))))}


@compiled
def _messages_with(keys: tuple[int, ...]) -> QuerySet[Message]:
    return Message.objects.filter(pk__in=keys).defer("body")


@compiled
def _calls_with(keys: tuple[int, ...]) -> QuerySet[ToolCall]:
    length = Length(Substr(Cast("result", TextField()), 1, LONGEST_READ + 1))
    rows = ToolCall.objects.filter(pk__in=keys).annotate(length=length)
    return rows.filter(length__lte=LONGEST_READ).defer("state")


def _corrected(
    rows: Iterable[_Row],
    findings: Mapping[int, ToolCall],
    replaced: Replacements,
    call: ToolCall,
    style_of: Callable[..., Style],
    mask: Mask,
) -> tuple[Finding, ...]:
    """The findings of the rows, each as a person corrected it.

    :param style_of: How a result of a tool is written, by its policy.
    """
    shown = []
    # As they are shown: what is hidden in the call chooses nothing.
    about = _shown_values(mask.row(call).ran_with)
    for row in rows:
        style = style_of(row.tool, asked_by=call.tool)
        if correction := replaced.by_call.get(row.position):
            is_short = len(correction.text) <= LONGEST_READ
            value = _value(correction.text) if is_short else "…"
            text = excerpts.of_value(value, FINDING_SHOWN, style, about)
            shown.append(Finding(mask.tool(row.tool), text, _by(correction, call)))
        elif row.pk in findings:
            text = excerpts.of_value(findings[row.pk].result, FINDING_SHOWN, style, about)
            shown.append(Finding(mask.tool(row.tool), text))
    return tuple(shown)


def _value(text: str) -> Any:
    """The result that a text of JSON holds, as the tool's own is shown; the text itself where it is none."""
    try:
        return as_plain_data(read_json(text))
    except Invalid:
        return text


def _by(correction: Replacement | None, call: ToolCall) -> str:
    """``corrected by anna``; it says where the model had asked for the call already."""
    if correction is None:
        return ""
    by = f" by {correction.by}" if correction.by else ""
    return f"corrected{by}{' after the call was requested' if correction.at > call.asked_at else ''}"
