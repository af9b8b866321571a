"""Two checkpoints beside each other: their messages aligned, their state by key, their counters.

What both share lies in the same rows, so it is counted, not read: only what comes after the last shared row costs.
"""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass

from sessions_app import restore
from sessions_app.models import Branch, Checkpoint, Message
from sessions_app.packing import fill_texts
from sessions_app.queries.values import show

MOST = 300


@dataclass(frozen=True, slots=True)
class Line:
    """``kind`` is same, added, removed or changed; ``left`` and ``right`` the messages, where there is one."""

    kind: str
    left: Message | None
    right: Message | None


@dataclass(frozen=True, slots=True)
class Key:
    kind: str
    name: str
    left: str
    right: str


@dataclass(frozen=True, slots=True)
class Comparison:
    left: Checkpoint
    right: Checkpoint
    shared: int
    lines: list[Line]
    cut: bool
    keys: list[Key]
    numbers: list[Key]

    @property
    def sides(self) -> list[dict[str, object]]:
        return [{"letter": "A", "checkpoint": self.left}, {"letter": "B", "checkpoint": self.right}]

    @property
    def tables(self) -> list[tuple[str, list[Key]]]:
        return [("State", self.keys), ("Numbers", self.numbers)]


def compare(left: Checkpoint, right: Checkpoint) -> Comparison:
    """The number of queries does not depend on how long either history is. Reads the checkpoints' branches."""
    fork = _last_shared(left, right)
    shared = Message.objects.visible_on(left.branch, upto=fork).count() if fork else 0
    mine, theirs = _after(left, fork), _after(right, fork)
    return Comparison(
        left,
        right,
        shared,
        _align(mine[:MOST], theirs[:MOST]),
        max(len(mine), len(theirs)) > MOST,
        _keys(restore.state_of(left.branch, left), restore.state_of(right.branch, right)),
        _keys(_numbers(left), _numbers(right)),
    )


def _last_shared(left: Checkpoint, right: Checkpoint) -> int:
    """The last position up to which both histories are the same rows; 0 for none."""
    ends = [dict(_segments(checkpoint.branch, checkpoint.position)) for checkpoint in (left, right)]
    return max((min(ends[0][pk], ends[1][pk]) for pk in ends[0].keys() & ends[1].keys()), default=0)


def _segments(branch: Branch, position: int) -> list[tuple[int, int]]:
    return [(pk, position if last is None else min(last, position)) for pk, last in branch.segments()]


def _after(checkpoint: Checkpoint, position: int) -> list[Message]:
    rows = Message.objects.visible_on(checkpoint.branch, after=position, upto=checkpoint.position)
    return fill_texts(checkpoint.branch, list(rows.order_by("position")[: MOST + 1]))


def _align(left: Sequence[Message], right: Sequence[Message]) -> list[Line]:
    one, other = ([(message.role, message.text) for message in side] for side in (left, right))
    matcher = difflib.SequenceMatcher(None, one, other, autojunk=False)
    lines: list[Line] = []
    for kind, a, b, c, d in matcher.get_opcodes():
        if kind == "equal":
            lines += [Line("same", *pair) for pair in zip(left[a:b], right[c:d], strict=True)]
            continue
        pairs = min(b - a, d - c)
        lines += [Line("changed", left[a + i], right[c + i]) for i in range(pairs)]
        lines += [Line("removed", message, None) for message in left[a + pairs : b]]
        lines += [Line("added", None, message) for message in right[c + pairs : d]]
    return lines


def _keys(left: dict[str, object], right: dict[str, object]) -> list[Key]:
    found = []
    for name in sorted(left.keys() | right.keys()):
        one = show(left[name]).text if name in left else ""
        other = show(right[name]).text if name in right else ""
        kind = (
            "same"
            if one == other
            else "added"
            if name not in left
            else "removed"
            if name not in right
            else "changed"
        )
        found.append(Key(kind, name, one, other))
    return found


def _numbers(checkpoint: Checkpoint) -> dict[str, object]:
    totals = {key: value for key, value in checkpoint.totals.items() if isinstance(value, int | float)}
    return {key.replace("_", " "): value for key, value in {**totals, "step": checkpoint.step}.items()}
