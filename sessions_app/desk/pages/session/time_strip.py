"""Model, tool, waiting and idle time of the newest steps, as bars on one axis.

What runs now counts up to now. Calls that ran or waited at the same time count once. The bars of one kind are one
shape: there are up to `CELLS` of them, and an element for each would be a good part of the page.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import QuerySet
from django.utils import timezone

from agentstate.names import OPEN_CALL_STATES, STEP_KINDS
from sessions_app.desk.pages.session.context import SessionContext
from sessions_app.models import (
    Branch,
    CallStatus,
    Checkpoint,
    Event,
    EventKind,
    ModelCall,
    Session,
    Status,
    ToolCall,
)
from sessions_app.models.compiled import compiled
from sessions_app.models.rows import Ranges, visible
from sessions_app.wording import duration

STEPS = 100
WIDTH = 340
CELLS = 170
TOP, HEIGHT = 12, 14
# How wide the bar of the kind that took longest is.
BAR = 170
# Where several things happened at once, the later one of these is drawn.
_KINDS = ("idle", "waiting", "model", "tool")
_RANKS = {kind: rank for rank, kind in enumerate(_KINDS)}
_LABELS = {"model": "model", "tool": "tools", "waiting": "waiting", "idle": "idle"}

_WAIT_BEGINS = (
    EventKind.IN_DOUBT,
    EventKind.CHANGED,
    EventKind.GAVE_UP,
    EventKind.RETRY,
    EventKind.BREAKPOINT,
)
_WAIT_ENDS = (EventKind.DECIDED, EventKind.CANCELLED)

Span = tuple[str, datetime, datetime]
# In microseconds from the beginning of the axis, so that sums are exact.
Ticks = tuple[str, int, int]
TICK, TICKS = timedelta(microseconds=1), 1_000_000


@dataclass(frozen=True, slots=True)
class Bar:
    kind: str
    x: float
    width: float


@dataclass(frozen=True, slots=True)
class Shape:
    """All bars of one kind: ``path`` is that of an SVG."""

    kind: str
    path: str


@dataclass(frozen=True, slots=True)
class Total:
    """The seconds of one kind in the whole session, as text and as the width of a bar at ``y``."""

    kind: str
    label: str
    duration: str
    width: float
    y: int


@dataclass(frozen=True, slots=True)
class Strip:
    """The bars of the newest steps. ``whole``: they cover the session from its beginning; ``live``: until now.

    start_text, end_text: both ends of the axis, with dates where the time of day alone would not say when it was.
    """

    start: datetime
    end: datetime
    start_text: str
    end_text: str
    bars: list[Bar]
    totals: list[Total]
    whole: bool
    live: bool

    @property
    def shapes(self) -> list[Shape]:
        paths: dict[str, list[str]] = {}
        for bar in self.bars:
            outline = f"M{bar.x:g} {TOP}h{bar.width:g}v{HEIGHT}h{-bar.width:g}z"
            paths.setdefault(bar.kind, []).append(outline)
        return [Shape(kind, "".join(outlines)) for kind, outlines in paths.items()]

    @property
    def description(self) -> str:
        """The totals in words, for a screen reader."""
        totals = ", ".join(f"{total.label} {total.duration}" for total in self.totals)
        return f"Time spent: {totals or 'none yet'}."


def strip(context: SessionContext) -> Strip | None:
    """The newest `STEPS` steps, and the whole session's totals; None before the first step. Four queries."""
    session, branch, now = context.session, context.branch, context.now
    starts = _starts(visible(branch))
    if not starts:
        return None
    is_whole = len(starts) <= STEPS
    position, start = starts[min(len(starts), STEPS) - 1]
    recorded, running = _spans(session, branch, position - 1, now)
    recorded += _waits(session, branch, position - 1, now, [first for _, first, _ in recorded])
    live = session.status in (Status.RUNNING, Status.WAITING, Status.QUEUED)
    end = max(
        now if live else starts[0][1],
        start + timedelta(milliseconds=1),
        *[last for _, _, last in (*recorded, *running)],
    )
    length = (end - start) // TICK
    of_recorded, of_running = _ticks(recorded, start), _ticks(running, start)
    return Strip(
        start,
        end,
        *axis_texts(start, now if live else end, now),
        _bars(_cells([*of_recorded, *of_running], length)),
        _totals(session, of_recorded, of_running, length if is_whole else None),
        is_whole,
        live,
    )


@compiled
def _starts(where: Ranges) -> QuerySet[Checkpoint, tuple[int, datetime]]:
    starts = Checkpoint.objects.filter(kind__in=STEP_KINDS).newest_within(where, STEPS + 1)
    return starts.values_list("position", "created_at")


@compiled
def _model_calls(where: Ranges) -> QuerySet[ModelCall, tuple[datetime, datetime]]:
    return ModelCall.objects.within(where).values_list("started_at", "ended_at")


@compiled
def _calls(where: Ranges) -> QuerySet[ToolCall, tuple[Any, ...]]:
    return ToolCall.objects.within(where).values_list(
        "started_at", "ended_at", "approval__asked_at", "approval__decided_at", "status", "decided_by"
    )


@compiled
def _wait_events(where: Ranges) -> QuerySet[Event, tuple[str, datetime]]:
    events = Event.objects.within(where).filter(kind__in=(*_WAIT_BEGINS, *_WAIT_ENDS))
    return events.order_by("position").values_list("kind", "created_at")


def axis_texts(start: datetime, end: datetime, now: datetime) -> tuple[str, str]:
    """Both ends of the axis: ``09:41:07``; on another day ``18 Nov 09:41:07``; over several days ``18 Nov 09:41``."""
    first, last, today = (timezone.localtime(at) for at in (start, end, now))
    if first.date() == last.date() == today.date():
        return f"{first:%H:%M:%S}", f"{last:%H:%M:%S}"
    day = "%d %b" if first.year == last.year == today.year else "%d %b %Y"
    if first.date() == last.date():
        return f"{first:{day} %H:%M:%S}", f"{last:%H:%M:%S}"
    return f"{first:{day} %H:%M}", f"{last:{day} %H:%M}"


def _spans(session: Session, branch: Branch, after: int, now: datetime) -> tuple[list[Span], list[Span]]:
    """What has ended or waits, and what runs now. Of the latter, the session's totals know nothing yet."""
    where = visible(branch, after=after)
    tools = _calls(where)
    spans: list[Span] = [("model", started, ended) for started, ended in _model_calls(where)]
    running: list[Span] = []
    is_running = session.status == Status.RUNNING
    # A worker whose lease is over may have ended.
    until = min(now, session.lease_expires_at or now)
    for started, ended, requested, decided, status, decided_by in tools:
        if started is not None and status == CallStatus.STARTED and is_running:
            running.append(("tool", started, max(started, until)))
        elif started is not None:
            # How long a call ran of which a person said what happened is unknown.
            unknown = status == CallStatus.DOUBT or bool(decided_by)
            spans.append(("tool", started, started if unknown or ended is None else ended))
        if requested is not None:
            spans.append(("waiting", requested, decided or now))
    if is_running and not any(status in OPEN_CALL_STATES for *_, status, _ in tools):
        # A model call is recorded when it ends. It began when its run did, or after what that did last.
        began = max([session.updated_at, *(last for _, _, last in spans)])
        running.append(("model", began, max(began, until)))
    return spans, running


def _waits(
    session: Session, branch: Branch, after: int, now: datetime, starts: Sequence[datetime]
) -> list[Span]:
    """What the session waited for beside approvals: a decision of a person, or its next attempt.

    Each wait ends with the decision, when a call starts, or when the session is ended; the last one may last until now.

    :param starts: When calls started.
    """
    spans: list[Span] = []
    for kind, at in _wait_events(visible(branch, after=after)):
        if kind in _WAIT_BEGINS:
            spans.append(("waiting", at, min((start for start in starts if start > at), default=now)))
        elif spans and (kind == EventKind.DECIDED or spans[-1][2] == now):
            spans[-1] = ("waiting", spans[-1][1], at)
    is_over = session.status in (Status.IDLE, Status.CANCELLED)
    return [("waiting", first, first if is_over and last == now else last) for _, first, last in spans]


def _ticks(spans: Iterable[Span], start: datetime) -> list[Ticks]:
    return [(kind, (first - start) // TICK, (last - start) // TICK) for kind, first, last in spans]


def _cells(spans: Iterable[Ticks], length: int) -> list[str]:
    """The kind that is drawn in each cell of the axis."""
    cells = [0] * CELLS
    for kind, first, last in spans:
        rank, begin = _RANKS[kind], int(first / length * CELLS)
        stop = max(begin + 1, int(last / length * CELLS))
        for cell in range(max(0, min(begin, CELLS - 1)), min(stop, CELLS)):
            if rank > cells[cell]:
                cells[cell] = rank
    return [_KINDS[rank] for rank in cells]


def _bars(cells: Sequence[str]) -> list[Bar]:
    """Neighbouring cells of a kind as one bar each."""
    bars: list[Bar] = []
    unit, first = WIDTH / CELLS, 0
    for cell in range(1, len(cells) + 1):
        if cell == len(cells) or cells[cell] != cells[first]:
            bars.append(
                Bar(cells[first], round(first * unit, 1), round(max((cell - first) * unit - 0.6, 0.8), 1))
            )
            first = cell
    return bars


def _totals(
    session: Session, recorded: Sequence[Ticks], running: Sequence[Ticks], length: int | None
) -> list[Total]:
    """``length`` is that of the axis, None where the bars do not begin at the session's beginning.

    All bars have one scale: the longest fills its row.
    """
    recorded_of, running_of = _by_kind(recorded), _by_kind(running)
    counted = {
        "model": _of_seconds(session.totals.get("model_seconds", 0)),
        "tool": _of_seconds(session.totals.get("tool_seconds", 0)),
        "waiting": _sum(recorded_of["waiting"]),
    }
    totals: dict[str, int] = {}
    together = 0
    for kind, ticks in counted.items():
        parts = recorded_of[kind] + running_of[kind]
        covered = _union(parts)
        together += covered
        # The session's totals add the calls up, those at the same time too.
        twice = _sum(parts) - covered
        totals[kind] = max(ticks + _sum(running_of[kind]) - twice, 0)
    if length is not None:
        several_kinds = together - _union([(first, last) for _, first, last in (*recorded, *running)])
        totals["idle"] = max(length + several_kinds - sum(totals.values()), 0)
    most = max(totals.values()) or 1
    return [
        Total(kind, _LABELS[kind], duration(ticks / TICKS), round(ticks / most * BAR, 1), 66 + 24 * row)
        for row, (kind, ticks) in enumerate(totals.items())
    ]


def _by_kind(spans: Iterable[Ticks]) -> dict[str, list[tuple[int, int]]]:
    by_kind: dict[str, list[tuple[int, int]]] = {kind: [] for kind in _KINDS}
    for kind, first, last in spans:
        by_kind[kind].append((first, last))
    return by_kind


def _of_seconds(seconds: float) -> int:
    return round(seconds * TICKS)


def _sum(parts: Iterable[tuple[int, int]]) -> int:
    return sum([last - first for first, last in parts])


def _union(parts: Iterable[tuple[int, int]]) -> int:
    """How long at least one of these was."""
    together, end = 0, None
    for first, last in sorted(parts):
        begin = first if end is None else max(first, end)
        together += max(last - begin, 0)
        end = last if end is None else max(last, end)
    return together
