"""The phase of a run, and the totals of the visible history that the desk shows.

Every change of phase of every run goes through `Meter.to`, which asks the state machine: a forbidden change is an
error here, before anything is written.
"""

from collections.abc import Callable
from datetime import datetime
from typing import Any

from agentstate.domain.phases import AgentPhase, check
from agentstate.durable.records import Progress

Clock = Callable[[], datetime]


class Meter:
    """Counts from the given progress on. Not thread-safe by itself."""

    def __init__(self, progress: Progress, clock: Clock) -> None:
        self.phase = AgentPhase(progress.phase)
        self.previous = progress.previous
        self.since = progress.since
        self._totals: dict[str, Any] = {
            key: dict(value) if isinstance(value, dict) else value for key, value in progress.totals.items()
        }
        self._clock = clock

    def to(self, phase: AgentPhase) -> None:
        """Enter `phase`.

        :raises IllegalTransition: if the state machine forbids it.
        """
        check(self.phase, phase)
        now = self._clock()
        before, after = self.phase.value, phase.value
        self._add_in("seconds", before, max(0.0, round((now - self.since).total_seconds(), 3)))
        self._add_in("edges", f"{before}>{after}", 1)
        self._add_in("visits", after, 1)
        self.previous, self.phase, self.since = before, phase, now

    def add(self, key: str, amount: float) -> None:
        """Add to the total of that name."""
        total = self._totals.get(key, 0) + amount
        self._totals[key] = round(total, 3) if type(total) is float else total

    def total(self, key: str) -> int:
        """The total of that name."""
        return int(self._totals.get(key, 0))

    def progress(self) -> Progress:
        totals = {key: {**value} if type(value) is dict else value for key, value in self._totals.items()}
        return Progress(phase=self.phase.value, previous=self.previous, since=self.since, totals=totals)

    def _add_in(self, key: str, name: str, amount: float) -> None:
        group = self._totals.setdefault(key, {})
        total = group.get(name, 0) + amount
        group[name] = round(total, 3) if type(total) is float else total
