"""The figures that have a goal, computed from the runs of all contenders."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.contenders import Run

# By database, number of steps and contender: a run of each round.
Runs = Mapping[tuple[str, int, str], Sequence[Run]]

# For a step: the rivals that record the model's reply and each call by themselves, and the greatest ratio to each.
STEP_GOALS = {"SQLite": {"dbos": 0.9, "delta-2": 0.9}, "PostgreSQL": {"dbos": 0.7, "delta-2": 0.9}}
OPERATION_GOALS = {
    "load to go on": {1000: 25.0, 5000: 150.0},
    "fork": dict.fromkeys((10, 100, 1000, 5000), 3.0),
    "rewind": dict.fromkeys((10, 100, 1000, 5000), 3.0),
    "newest 20 checkpoints": dict.fromkeys((10, 100, 1000, 5000), 1.0),
}
CPU_GOAL = 1.2
BYTES_GOAL = 4600
LAST_TENTH_GOAL = 6.0


@dataclass(frozen=True, slots=True)
class Figure:
    """A measured figure and its goal, both in `unit`. A round is one run of all contenders, one after the other."""

    name: str
    rounds: tuple[float, ...]
    goal: float
    unit: str
    at_least: bool = False

    @property
    def value(self) -> float:
        return statistics.median(self.rounds)

    @property
    def holds(self) -> bool:
        return self.value >= self.goal if self.at_least else self.value <= self.goal


def figures(runs: Runs) -> Iterator[Figure]:
    for (database, steps, key), own in runs.items():
        if key != "agentstate":
            continue
        where = f"{database}, S = {steps:,}"
        for rival, goal in STEP_GOALS[database].items():
            if others := runs.get((database, steps, rival)):
                ratios = tuple(a.median / b.median for a, b in zip(own, others, strict=True))
                yield Figure(f"{where}: a step, of {rival}'s", ratios, goal, "times")
        others = runs.get((database, steps, "messages"))
        if steps == 1000 and others:
            ratios = tuple(b.last_tenth / a.last_tenth for a, b in zip(own, others, strict=True))
            name = f"{where}: last tenth, how much faster than LangGraph's default"
            yield Figure(name, ratios, LAST_TENTH_GOAL, "times", at_least=True)
        if steps >= 1000:
            yield Figure(f"{where}: CPU of a step", tuple(run.cpu for run in own), CPU_GOAL, "ms")
        if steps == 1000:
            yield Figure(f"{where}: stored for a step", tuple(run.stored for run in own), BYTES_GOAL, "bytes")
        for operation, goals in OPERATION_GOALS.items():
            if steps in goals:
                times = tuple(run.operations[operation] for run in own)
                yield Figure(f"{where}: {operation}", times, goals[steps], "ms")
