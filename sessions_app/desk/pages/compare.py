"""Two checkpoints beside each other: what the model sees at each, message by message; the state by key; the numbers.

They may be of one session or of two. Messages that both see in the same rows are the same, and are only counted; the
rest is aligned by its text. Nothing of a long shared history is read.

``whole`` says that a person may reveal hidden values: then values that differ only in what is hidden count as changed.
For others they count as the same. Otherwise they could type a guess into a session of their own, and compare.
"""

import difflib
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from agentstate.durable.state.tags import without_order
from sessions_app import wording
from sessions_app.access.availability import shows
from sessions_app.access.masking import Mask
from sessions_app.desk.pages.summary import formats_of
from sessions_app.desk.pages.values import readable
from sessions_app.history import restore
from sessions_app.history.message_rows import RESULT_OF, text_in
from sessions_app.history.staff_notes import staff_notes
from sessions_app.models import Branch, Checkpoint, Message, ToolCall

MOST = 300
# What aligning the messages and the words of a page may take, in pairs of equal ones that are looked at. Repeated words
# take the cube of their number, and whoever writes to an agent decides what it repeats.
MOST_PAIRS = 2_000_000
# Of these, what one of the texts may take, so that the others are aligned too.
MOST_PAIRS_OF_ONE = 500_000
# A word with the blanks before it: each blank by itself would make a pair with all others.
_WORDS = re.compile(r"\s*\w+|\s*[^\w\s]|\s+")
SAME, ADDED, REMOVED, CHANGED = "same", "added", "removed", "changed"
Span = tuple[list[int], list[int]]


@dataclass(frozen=True, slots=True)
class Side:
    """One message. ``who`` says it; ``parts`` is its text in pieces: those with True are missing on the other side.

    Messages with the same ``digest`` count as equal. It is not shown.
    """

    role: str
    who: str
    text: str
    position: int
    digest: int
    parts: Sequence[tuple[str, bool]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Line:
    """``kind`` is same, added, removed or changed; ``left`` and ``right`` are the messages, where there is one.

    ``folded`` is the number of equal messages in a row, none of which is shown.
    """

    kind: str
    left: Side | None = None
    right: Side | None = None
    folded: int = 0


@dataclass(frozen=True, slots=True)
class Key:
    """A state key or a number, with the text of its value on either side, "" where it has none."""

    kind: str
    name: str
    left: str
    right: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """``shared`` is the number of equal messages at the beginning; ``cut``: more messages differ than are shown."""

    left: Checkpoint
    right: Checkpoint
    shared: int
    lines: list[Line]
    cut: bool
    keys: list[Key]
    numbers: list[Key]

    @property
    def sides(self) -> list[dict[str, object]]:
        """Each with the letter by which the tables name it, and whether its session's current history shows it."""
        return [
            {"letter": letter, "checkpoint": checkpoint, "is_current": _is_current(checkpoint)}
            for letter, checkpoint in (("A", self.left), ("B", self.right))
        ]

    def differences(self) -> "Comparison":
        """Without the messages, keys and numbers that are the same on both sides."""
        return replace(
            self,
            shared=0,
            lines=[line for line in self.lines if line.kind != SAME],
            keys=[key for key in self.keys if key.kind != SAME],
            numbers=[key for key in self.numbers if key.kind != SAME],
        )

    @property
    def tables(self) -> list[tuple[str, list[Key]]]:
        """Those of the state and the numbers that have a row."""
        return [(title, keys) for title, keys in (("State", self.keys), ("Numbers", self.numbers)) if keys]


def compare(left: Checkpoint, right: Checkpoint, mask: Mask, *, whole: bool) -> Comparison:
    """At most eighteen queries, however long either history is. Reads the checkpoints' branches."""
    shared, spans = (
        _whole_history(left, right) if not left.context_at + right.context_at else _context(left, right)
    )
    masks = mask, Mask.none() if whole else mask
    aligned = _Aligned(MOST_PAIRS)
    left_sides = _sides(left.branch, [pk for keys, _ in _differing(spans) for pk in keys][:MOST], *masks)
    right_sides = _sides(right.branch, [pk for _, keys in _differing(spans) for pk in keys][:MOST], *masks)
    return Comparison(
        mask.row(left),
        mask.row(right),
        shared,
        [line for span in spans for line in _lines(span, left_sides, right_sides, aligned)],
        max(sum(len(span[side]) for span in _differing(spans)) for side in (0, 1)) > MOST,
        _keys(restore.state_of(left.branch, left), restore.state_of(right.branch, right), *masks),
        _keys(_numbers(left), _numbers(right), Mask.none(), Mask.none()),
    )


# Which rows


def _whole_history(left: Checkpoint, right: Checkpoint) -> tuple[int, list[Span | int]]:
    """The model sees all visible messages: both contexts have the same rows up to where their histories part."""
    ends = [dict(_segments(checkpoint.branch, checkpoint.position)) for checkpoint in (left, right)]
    fork = max((min(ends[0][pk], ends[1][pk]) for pk in ends[0].keys() & ends[1].keys()), default=0)
    shared = Message.objects.visible_on(left.branch, upto=fork).count() if fork else 0
    return shared, [(_after(left, fork), _after(right, fork))]


def _segments(branch: Branch, position: int) -> Iterator[tuple[int, int]]:
    for pk, last in branch.segments():
        yield pk, position if last is None else min(last, position)


def _after(checkpoint: Checkpoint, position: int) -> list[int]:
    rows = Message.objects.visible_on(checkpoint.branch, after=position, upto=checkpoint.position)
    return list(rows.order_by("position").values_list("pk", flat=True)[: MOST + 1])


def _context(left: Checkpoint, right: Checkpoint) -> tuple[int, list[Span | int]]:
    """The context of one was rewritten, so the rows of both must be compared."""
    left_keys, right_keys = (
        [message.pk for message in restore.context_of(side.branch, side, only=("branch",))]
        for side in (left, right)
    )
    shared = next(
        (i for i, (a, b) in enumerate(zip(left_keys, right_keys, strict=False)) if a != b),
        min(len(left_keys), len(right_keys)),
    )
    left_keys, right_keys = left_keys[shared:], right_keys[shared:]
    spans: list[Span | int] = []
    for kind, a, b, c, d in difflib.SequenceMatcher(
        None, left_keys, right_keys, autojunk=False
    ).get_opcodes():
        spans.append(b - a if kind == "equal" else (left_keys[a:b], right_keys[c:d]))
    return shared, spans


def _differing(spans: Sequence[Span | int]) -> list[Span]:
    return [span for span in spans if not isinstance(span, int)]


# The messages


def _sides(branch: Branch, keys: list[int], mask: Mask, compared: Mask) -> dict[int, Side]:
    def show(tool: str) -> wording.Show:
        return formats_of(branch.session.registered_agent, tool)

    rows = Message.objects.in_bulk(keys)
    places = [row.body[RESULT_OF] for row in rows.values() if RESULT_OF in row.body and not row.text]
    calls = (
        ToolCall.objects.visible_on(branch).filter(position__in=places) if places else ToolCall.objects.none()
    )
    results: dict[int, Any] = dict(calls.values_list("position", "result"))
    notes = staff_notes(rows.values(), mask, show)
    sides = {
        pk: _side(row, text_in(results[at], row.body) if at in results else "", mask, compared, show)
        for pk, row, at in ((pk, row, row.body.get(RESULT_OF)) for pk, row in rows.items())
    }
    for pk, row in rows.items():
        if (note := notes.get((row.branch_id, row.position))) is not None:
            sides[pk] = replace(sides[pk], role="staff", who="Staff", text=note.text)
    return sides


def _side(
    row: Message, result: str, mask: Mask, compared: Mask, formats: Callable[[str], wording.Show]
) -> Side:
    """The text of a message, and the calls that it requests. Through the mask ``compared``, it is compared."""

    def arguments(by: Mask, call: dict[str, Any]) -> Any:
        return by.column("arguments", call["arguments"])

    requested = [part["tool_call"] for part in row.body.get("content", ()) if part.get("tool_call")]
    calls = [
        f"{mask.tool(call['tool_name'])}"
        f"({wording.arguments(arguments(mask, call), 2000, formats(call['tool_name']))})"
        for call in requested
    ]
    text = "\n".join([mask.message(row.role, row.text or result), *calls]).strip("\n")
    content = [
        row.role,
        compared.message(row.role, row.text or result),
        *((compared.tool(call["tool_name"]), repr(arguments(compared, call))) for call in requested),
    ]
    return Side(row.role, row.who, text, row.position, hash(tuple(content)))


def _lines(
    span: Span | int, left_sides: dict[int, Side], right_sides: dict[int, Side], aligned: "_Aligned"
) -> Iterator[Line]:
    if isinstance(span, int):
        yield Line(SAME, folded=span)
        return
    left = [left_sides[pk] for pk in span[0] if pk in left_sides]
    right = [right_sides[pk] for pk in span[1] if pk in right_sides]
    for kind, a, b, c, d in aligned.of([side.digest for side in left], [side.digest for side in right]):
        if kind == "equal":
            yield from (Line(SAME, *pair) for pair in zip(left[a:b], right[c:d], strict=True))
        else:
            yield from _differ(left[a:b], right[c:d], aligned)


def _differ(left: Sequence[Side], right: Sequence[Side], aligned: "_Aligned") -> Iterator[Line]:
    """Messages of the same role, in the same order, count as changed."""
    for kind, a, b, c, d in aligned.of([side.role for side in left], [side.role for side in right]):
        if kind == "equal":
            yield from (_changed(*pair, aligned) for pair in zip(left[a:b], right[c:d], strict=True))
        else:
            yield from (Line(REMOVED, left=side) for side in left[a:b])
            yield from (Line(ADDED, right=side) for side in right[c:d])


def _changed(left: Side, right: Side, aligned: "_Aligned") -> Line:
    words, other_words = (_WORDS.findall(side.text) for side in (left, right))
    parts: tuple[list[tuple[str, bool]], list[tuple[str, bool]]] = ([], [])
    for kind, a, b, c, d in aligned.of(words, other_words):
        for side, pieces in zip(parts, (words[a:b], other_words[c:d]), strict=True):
            if pieces:
                side.append(("".join(pieces), kind != "equal"))
    return Line(CHANGED, replace(left, parts=parts[0]), replace(right, parts=parts[1]))


class _Aligned:
    """Aligns sequences, with so many pairs of equal items for all of them together."""

    def __init__(self, most_pairs: int) -> None:
        self._left = most_pairs

    def of(self, left: Sequence[Any], right: Sequence[Any]) -> Sequence[tuple[str, int, int, int, int]]:
        """The opcodes of difflib; one that replaces all of it where too many pairs would have to be looked at."""
        most = min(MOST_PAIRS_OF_ONE, self._left)
        matcher = _Counting(left, right, most_pairs=most)
        try:
            return matcher.get_opcodes()
        except _TooManyPairs:
            return [("replace", 0, len(left), 0, len(right))]
        finally:
            self._left -= most - max(0, matcher.pairs_left)


class _TooManyPairs(Exception):
    pass


class _Counting(difflib.SequenceMatcher[Any]):
    def __init__(self, left: Sequence[Any], right: Sequence[Any], *, most_pairs: int) -> None:
        super().__init__(None, left, right, autojunk=False)
        places = Counter(right)
        self._pairs = [1 + places[item] for item in left]
        self.pairs_left = most_pairs

    def find_longest_match(
        self, alo: int = 0, ahi: int | None = None, blo: int = 0, bhi: int | None = None
    ) -> difflib.Match:
        """As difflib's, which looks for each item of this part of the left side at all equal ones on the right.

        :raises _TooManyPairs: if these are more than are left.
        """
        self.pairs_left -= sum(self._pairs[alo:ahi])
        if self.pairs_left < 0:
            raise _TooManyPairs
        return super().find_longest_match(alo, ahi, blo, bhi)


# State and numbers


def _keys(left: dict[str, Any], right: dict[str, Any], mask: Mask, compared: Mask) -> list[Key]:
    left, right = compared.json(left), compared.json(right)
    rows = []
    for name in sorted(left.keys() | right.keys()):
        [shown_name] = mask.json({name: None})
        shown = [mask.json({name: values.get(name)}) for values in (left, right)]
        texts = [
            readable(value, as_stored=True).text if name in values else ""
            for values, masked in zip((left, right), shown, strict=True)
            for value in masked.values()
        ]
        if name not in left:
            kind = ADDED
        elif name not in right:
            kind = REMOVED
        else:
            kind = SAME if without_order(left[name]) == without_order(right[name]) else CHANGED
        rows.append(Key(kind, shown_name, *texts))
    return rows


def _numbers(checkpoint: Checkpoint) -> dict[str, Any]:
    numbers = {**checkpoint.totals, "context tokens": checkpoint.counters.get("context_tokens")}
    plain = {key: value for key, value in numbers.items() if isinstance(value, int | float)}
    rounded = {key: round(value, 3) if isinstance(value, float) else value for key, value in plain.items()}
    names = {"steps": "steps done"}
    named = {names.get(key, key.replace("_", " ")): value for key, value in rounded.items()}
    return {**named, "number of the step": checkpoint.step}


def _is_current(checkpoint: Checkpoint) -> bool:
    return shows(checkpoint.branch.session.current_branch, checkpoint)
