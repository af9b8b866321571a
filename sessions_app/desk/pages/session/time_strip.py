"""Model, tool, waiting and idle time of the newest steps, as bars on one axis."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from agentstate.names import STEP_KINDS
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
    WaitingFor,
)
from sessions_app.wording import duration

STEPS = 100
WIDTH = 340
CELLS = 170
# Where several things happened at once, the later one of these is drawn.
_ORDER = ("idle", "waiting", "model", "tool")
_LABELS = {"model": "model", "tool": "tools", "waiting": "waiting", "idle": "idle"}

Span = tuple[str, datetime, datetime]


@dataclass(frozen=True, slots=True)
class Bar:
    kind: str
    x: float
    width: float


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
    """The bars of the newest steps. ``whole``: they cover the session from its beginning; ``live``: until now."""

    start: datetime
    end: datetime
    bars: list[Bar]
    totals: list[Total]
    whole: bool
    live: bool

    @property
    def description(self) -> str:
        """The totals in words, for a screen reader."""
        totals = ", ".join(f"{total.label} {total.duration}" for total in self.totals)
        return f"Time spent: {totals or 'none yet'}."


def strip(context: SessionContext) -> Strip | None:
    """The newest `STEPS` steps, and the whole session's totals; None before the first step. Four queries."""
    session, branch, now = context.session, context.branch, context.now
    starts = list(
        Checkpoint.objects.visible_on(branch)
        .filter(kind__in=STEP_KINDS)
        .order_by("-position")
        .values_list("position", "created_at")[: STEPS + 1]
    )
    if not starts:
        return None
    is_whole = len(starts) <= STEPS
    position, start = starts[min(len(starts), STEPS) - 1]
    spans = [*_spans(branch, position - 1, now), *_doubt_spans(session, branch, position - 1, now)]
    live = session.status in (Status.RUNNING, Status.WAITING, Status.QUEUED)
    end = max(
        [last for _, _, last in spans] + [now if live else starts[0][1], start + timedelta(milliseconds=1)]
    )
    seconds = (end - start).total_seconds() if is_whole else None
    return Strip(
        start, end, _bars(_cells(spans, start, end)), _totals(session, spans, seconds), is_whole, live
    )


def _spans(branch: Branch, after: int, now: datetime) -> list[Span]:
    models = ModelCall.objects.visible_on(branch, after=after).values_list("started_at", "ended_at")
    tools = ToolCall.objects.visible_on(branch, after=after).values_list(
        "started_at", "ended_at", "approval__asked_at", "approval__decided_at", "status", "decided_by"
    )
    spans: list[Span] = [("model", started, ended) for started, ended in models]
    for started, ended, requested, decided, status, decided_by in tools:
        if started is not None:
            # How long a call ran of which a person said what happened is unknown.
            unknown = status == CallStatus.DOUBT or (decided_by and requested is None)
            spans.append(("tool", started, started if unknown or ended is None else ended))
        if requested is not None:
            spans.append(("waiting", requested, decided or now))
    return spans


def _doubt_spans(session: Session, branch: Branch, after: int, now: datetime) -> list[Span]:
    """From when calls were found in doubt until the last of them was decided, or until now."""
    events = (
        Event.objects.visible_on(branch, after=after)
        .filter(kind__in=(EventKind.IN_DOUBT, EventKind.DECIDED))
        .order_by("position")
        .values_list("kind", "created_at")
    )
    spans: list[Span] = []
    for kind, at in events:
        if kind == EventKind.IN_DOUBT:
            spans.append(("waiting", at, at))
        elif spans:
            spans[-1] = ("waiting", spans[-1][1], at)
    if spans and session.waiting_for == WaitingFor.DOUBT:
        spans[-1] = ("waiting", spans[-1][1], now)
    return spans


def _cells(spans: Sequence[Span], start: datetime, end: datetime) -> list[str]:
    """The kind that is drawn in each cell of the axis."""
    total_seconds = (end - start).total_seconds()
    cells = ["idle"] * CELLS
    for kind, first, last in spans:
        begin = int((first - start).total_seconds() / total_seconds * CELLS)
        stop = max(begin + 1, int((last - start).total_seconds() / total_seconds * CELLS))
        for cell in range(max(0, min(begin, CELLS - 1)), min(stop, CELLS)):
            if _ORDER.index(kind) > _ORDER.index(cells[cell]):
                cells[cell] = kind
    return cells


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


def _totals(session: Session, spans: Sequence[Span], axis: float | None) -> list[Total]:
    """``axis`` are the seconds of the whole session, None where the bars do not begin at its beginning.

    The bar of the idle time ends where the longest other one does: a session may rest for days.
    """
    seconds = {
        "model": float(session.totals.get("model_seconds", 0)),
        "tool": float(session.totals.get("tool_seconds", 0)),
        "waiting": sum((last - first).total_seconds() for kind, first, last in spans if kind == "waiting"),
    }
    most = max(seconds.values()) or axis or 1.0
    if axis is not None:
        seconds["idle"] = max(axis - sum(seconds.values()), 0.0)
    return [
        Total(
            kind,
            _LABELS[kind],
            duration(amount),
            round(min(max(amount / most * 190, 2), 190), 1) if amount else 0,
            66 + 30 * row,
        )
        for row, (kind, amount) in enumerate(seconds.items())
    ]
