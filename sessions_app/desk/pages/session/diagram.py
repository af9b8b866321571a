"""The phase diagram: which phases a session went through, how often, and which it is in. No queries.

The places of nodes and edges are fixed, so that the diagram does not move while it is watched. There are two layouts
of the same facts, a wide one and a tall one for narrow screens; the stylesheet shows one of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from agentstate.domain.phases import TRANSITIONS
from sessions_app.desk.pages.session.context import SessionContext
from sessions_app.finding import stuck
from sessions_app.models import Phase, Session, Status
from sessions_app.wording import count, rough_duration


@dataclass(frozen=True, slots=True)
class Node:
    phase: str
    note: str
    state: str  # now, seen or never
    x: int
    y: int
    width: int
    height: int

    @property
    def middle(self) -> int:
        return self.x + self.width // 2

    @property
    def name_y(self) -> int:
        return self.y + self.height // 2 + (-3 if self.note else 4)

    @property
    def note_y(self) -> int:
        return self.y + self.height // 2 + 13


@dataclass(frozen=True, slots=True)
class Edge:
    source: str
    target: str
    count: int
    path: str
    badge: tuple[int, int]

    @property
    def name(self) -> str:
        return f"{self.source}-{self.target}"

    @property
    def description(self) -> str:
        return f"{self.source} to {self.target}, {count(self.count, 'time')}"

    @property
    def badge_width(self) -> int:
        return 12 + 7 * len(f"{self.count:,}")

    @property
    def badge_x(self) -> float:
        return self.badge[0] - self.badge_width / 2

    @property
    def badge_y(self) -> int:
        return self.badge[1] - 8

    @property
    def text_y(self) -> int:
        return self.badge[1] + 4


@dataclass(frozen=True, slots=True)
class Picture:
    name: str
    width: int
    height: int
    nodes: list[Node]
    edges: list[Edge]

    @property
    def lines(self) -> tuple[tuple[str, bool], ...]:
        """The path of each edge, and whether it was taken."""
        return tuple((edge.path, edge.count > 0) for edge in self.edges)

    @property
    def taken(self) -> list[Edge]:
        return [edge for edge in self.edges if edge.count]


@dataclass(frozen=True, slots=True)
class Diagram:
    """``description`` says the same in words, for a screen reader."""

    tone: str
    description: str
    pictures: list[Picture]


Box = tuple[int, int, int, int]
Line = tuple[str, tuple[int, int]]

_WIDE: dict[str, Box] = {
    "idle": (16, 66, 84, 42),
    "planning": (172, 66, 128, 42),
    "executing": (372, 66, 128, 42),
    "reflecting": (572, 66, 128, 42),
    "done": (772, 66, 92, 42),
    "error": (372, 137, 128, 36),
}
_WIDE_LINES: dict[tuple[str, str], Line] = {
    ("idle", "planning"): ("M100 87H168", (133, 87)),
    ("planning", "executing"): ("M300 87H368", (333, 87)),
    ("executing", "reflecting"): ("M500 87H568", (533, 87)),
    ("reflecting", "done"): ("M700 87H768", (733, 87)),
    ("reflecting", "planning"): ("M636 66C626 26 246 26 236 62", (436, 36)),
    ("planning", "done"): ("M212 66C212 -6 818 -6 818 62", (515, 12)),
    ("planning", "error"): ("M276 108C276 132 330 147 368 147", (308, 136)),
    ("executing", "error"): ("M436 108V133", (436, 121)),
    ("reflecting", "error"): ("M636 108C636 146 560 154 504 154", (591, 145)),
    ("error", "planning"): ("M372 163C260 182 208 160 208 112", (248, 163)),
    ("done", "planning"): ("M818 108C818 204 186 214 186 112", (502, 185)),
}
_TALL: dict[str, Box] = {
    "idle": (88, 8, 136, 38),
    "planning": (88, 82, 136, 52),
    "executing": (88, 174, 136, 52),
    "reflecting": (88, 266, 136, 52),
    "done": (88, 358, 136, 42),
    "error": (262, 178, 62, 44),
}
_TALL_LINES: dict[tuple[str, str], Line] = {
    ("idle", "planning"): ("M156 46V78", (156, 61)),
    ("planning", "executing"): ("M156 134V170", (156, 151)),
    ("executing", "reflecting"): ("M156 226V262", (156, 243)),
    ("reflecting", "done"): ("M156 318V354", (156, 335)),
    ("reflecting", "planning"): ("M88 292C36 292 36 112 84 112", (49, 202)),
    ("planning", "done"): ("M88 98C-8 98-8 379 84 379", (16, 250)),
    ("planning", "error"): ("M224 118C262 118 288 138 288 174", (272, 133)),
    ("executing", "error"): ("M224 200H258", (240, 200)),
    ("reflecting", "error"): ("M224 282C262 282 288 262 288 226", (272, 267)),
    ("error", "planning"): ("M308 178C308 84 262 92 228 92", (284, 104)),
    ("done", "planning"): ("M224 379C376 379 376 126 228 126", (338, 252)),
}
_LAYOUTS: list[tuple[str, int, int, dict[str, Box], dict[tuple[str, str], Line]]] = [
    ("wide", 880, 195, _WIDE, _WIDE_LINES),
    ("tall", 356, 410, _TALL, _TALL_LINES),
]
_SMALL = 100


def of_session(context: SessionContext) -> Diagram:
    """The diagram of one session: its totals for what happened, its phase for what is happening now."""
    session, now = context.session, context.now
    tone, label = stuck.status_label(session, now)
    return of_totals(
        session.totals,
        tone=tone,
        current=session.phase,
        current_note=_current_note(session, now),
        label=label,
    )


def _current_note(session: Session, now: datetime) -> str:
    """What stands in the session's phase: for how long it is in it, where that still grows."""
    if session.status == Status.CANCELLED:
        return "cancelled"
    seconds = int((now - session.phase_since).total_seconds())
    at_rest = session.phase in (Phase.DONE, Phase.IDLE)
    return "now" if at_rest or seconds < 1 else f"now, {rough_duration(seconds)}"


def of_totals(
    totals: Mapping[str, Any],
    *,
    tone: str = "idle",
    current: str = "",
    current_note: str = "",
    label: str = "",
) -> Diagram:
    """The diagram of any totals; those of many sessions together have no current phase."""
    visits: Mapping[str, int] = totals.get("visits", {})
    seconds: Mapping[str, float] = totals.get("seconds", {})
    edges: Mapping[str, int] = totals.get("edges", {})
    # Every session starts idle, which no run counts as a visit.
    visited = {phase for phase in Phase.values if visits.get(phase)} | {
        end for edge in edges for end in edge.split(">")
    }

    def note(phase: str, width: int) -> str:
        if phase == current:
            return current_note if width > _SMALL else "now"
        if not visits.get(phase):
            return ""
        times = f"{visits[phase]:,}" + ("×" if width <= _SMALL else " visit" + "s" * (visits[phase] != 1))
        return (
            times if width <= _SMALL or phase not in seconds else f"{times}, {rough_duration(seconds[phase])}"
        )

    pictures = []
    for name, width, height, boxes, lines in _LAYOUTS:
        nodes = [
            Node(
                phase,
                note(phase, box[2]),
                "now" if phase == current else "seen" if phase in visited else "never",
                *box,
            )
            for phase, box in boxes.items()
        ]
        drawn = [
            Edge(source, target, edges.get(f"{source}>{target}", 0), *lines[source, target])
            for source, target in sorted(lines, key=lambda ends: edges.get(f"{ends[0]}>{ends[1]}", 0) > 0)
        ]
        pictures.append(Picture(name, width, height, nodes, drawn))
    return Diagram(tone, _description(label, current, visits, edges), pictures)


def _description(label: str, current: str, visits: Mapping[str, int], edges: Mapping[str, int]) -> str:
    parts = [f"{label}. " if label else "", f"The agent is {current}." if current else ""]
    if visits:
        parts.append(
            " Visited: "
            + ", ".join(f"{p} {count(visits[p], 'time')}" for p in Phase.values if visits.get(p))
            + "."
        )
    edges_taken = [
        f"{source.value} to {target.value} {count(edges[f'{source.value}>{target.value}'], 'time')}"
        for source, targets in TRANSITIONS.items()
        for target in sorted(targets)
        if edges.get(f"{source.value}>{target.value}")
    ]
    if edges_taken:
        parts.append(" Changes: " + ", ".join(edges_taken) + ".")
    return "".join(parts)
