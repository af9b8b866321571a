"""What a benchmark hands over: rows with goal and verdict, tables and charts, and where and when it was measured."""

import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self

# The CPU of a step of the plain agent on the machine on which the goals in milliseconds, seconds and cores were set.
PLAIN_MS = 0.25
_OF_SPEED = ("ms", "s", "cores")


@dataclass(frozen=True, slots=True)
class Row:
    """A figure, in `unit`, with its value in each round.

    goal: None where the figure is only shown. With a rival it is a goal of the ratio to that rival, otherwise of the
        figure itself.
    ratios: the figure divided by the rival's of the same round.
    """

    figure: str
    rounds: tuple[float, ...]
    unit: str
    goal: float | None = None
    at_least: bool = False
    rival: str = ""
    ratios: tuple[float, ...] = ()

    @property
    def holds(self) -> bool | None:
        """Whether the median of the rounds keeps the goal; None without a goal."""
        if self.goal is None:
            return None
        value = statistics.median(self.ratios if self.rival else self.rounds)
        return value >= self.goal if self.at_least else value <= self.goal

    def scaled(self, plain_ms: float) -> float | None:
        """The median on the machine of the goals, if all of it were CPU; None where the goal is not one of speed.

        :param plain_ms: The CPU that a step of the plain agent took where and when this was measured.
        """
        if self.goal is None or self.rival or self.unit not in _OF_SPEED:
            return None
        return statistics.median(self.rounds) * PLAIN_MS / plain_ms

    def holds_as_scaled(self, plain_ms: float) -> bool | None:
        """The same of the goal as `holds`, by what `scaled` gives where that gives something."""
        scaled = self.scaled(plain_ms)
        if scaled is None or self.goal is None:
            return self.holds
        return scaled >= self.goal if self.at_least else scaled <= self.goal


def compared(
    figure: str,
    own: Sequence[float],
    others: Sequence[float],
    unit: str,
    *,
    rival: str,
    goal: float | None = None,
    at_least: bool = False,
) -> Row:
    """A row with the ratio to the rival, round by round."""
    ratios = tuple(a / b for a, b in zip(own, others, strict=True))
    return Row(figure, tuple(own), unit, goal, at_least, rival, ratios)


@dataclass(frozen=True, slots=True)
class Table:
    """What is shown below the goals: every cell is text."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Chart:
    """Lines by their name, each of points (x, y); both axes are logarithmic."""

    file: str
    title: str
    x: str
    y: str
    lines: dict[str, list[tuple[float, float]]]


@dataclass(frozen=True, slots=True)
class Measured:
    """The outcome of a part. `facts` are numbers that another part or a document reads."""

    rows: Sequence[Row]
    tables: Sequence[Table] = ()
    charts: Sequence[Chart] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Record:
    """What was measured, with the circumstances.

    plain_ms: the CPU of a step of the plain agent, before and after.
    """

    part: str
    at: str
    machine: str
    load: float
    plain_ms: tuple[float, float]
    minutes: float
    sizes: dict[str, Any]
    versions: dict[str, str]
    measured: Measured

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        measured = dict(values["measured"])
        rows = [
            Row(**{**row, "rounds": tuple(row["rounds"]), "ratios": tuple(row["ratios"])})
            for row in measured.pop("rows")
        ]
        tables = [
            Table(table["title"], tuple(table["head"]), tuple(tuple(row) for row in table["rows"]))
            for table in measured.pop("tables")
        ]
        charts = [Chart(**chart) for chart in measured.pop("charts")]
        plain_ms = tuple(values["plain_ms"])
        return cls(**{**values, "plain_ms": plain_ms, "measured": Measured(rows, tables, charts, **measured)})


def machine() -> str:
    """The processor, how many of them, the memory, and the system, without what names its build."""
    model = platform.machine()
    information = Path("/proc/cpuinfo")
    if information.exists():
        names = [
            line.partition(":")[2] for line in information.read_text().splitlines() if "model name" in line
        ]
        model = names[0].strip() if names else model
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    release = platform.release().partition("-")[0]
    return f"{model}, {os.cpu_count()} CPUs, {memory:.0f} GiB, {platform.system()} {release}"


def own_versions() -> dict[str, str]:
    names = {"Django": "django", "Haystack": "haystack-ai", "psycopg": "psycopg"}
    return {"Python": platform.python_version()} | {name: version(package) for name, package in names.items()}


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
