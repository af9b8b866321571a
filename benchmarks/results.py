"""Writes `benchmarks/RESULTS.md` and its charts from the runs of all contenders."""

import os
import platform
import statistics
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path

import django

from benchmarks.contenders import CONTENDERS
from benchmarks.figures import Figure, Runs, figures
from benchmarks.plot import line_chart

HERE = Path(__file__).parent
INTRODUCTION = """\
# Results of the benchmarks

Written by `make bench`. One step is one reply of a stub model that asks for one tool call with 100 bytes of arguments,
a result of 1 KB and 500 bytes of state that change. The contenders run one after the other in each round, each on a new
database; SQLite has a write-ahead log and synchronous FULL. Times are medians of the steps of a run, and then of the
rounds, with the lowest and the highest round behind them. LangGraph and DBOS call a plain function where AgentState
runs Haystack's whole agent loop.
"""


def write(runs: Runs, rounds: int, versions: Mapping[str, str], folder: Path = HERE) -> None:
    databases = list(dict.fromkeys(database for database, _, _ in runs))
    text = [INTRODUCTION, *_machine(rounds, versions), *_goals(list(figures(runs)))]
    for database in databases:
        chart = f"steps-{database.lower()}.svg"
        (folder / chart).write_text(_chart(database, runs))
        text += [f"\n## Steps on {database}\n", f"![Milliseconds a step on {database}]({chart})\n"]
        text += _table(database, runs)
    (folder / "RESULTS.md").write_text("\n".join(text) + "\n")


def _machine(rounds: int, versions: Mapping[str, str]) -> Iterator[str]:
    own = (
        f"Python {platform.python_version()}, Django {django.__version__}, Haystack {version('haystack-ai')}"
    )
    others = ", ".join(f"{name} {number}" for name, number in versions.items())
    yield f"{os.cpu_count()} CPUs, {platform.system()} {platform.machine()}; {rounds} rounds. {own}, {others}.\n"


def _goals(all_figures: list[Figure]) -> Iterator[str]:
    holding = sum(figure.holds for figure in all_figures)
    yield f"## Goals: {holding} of {len(all_figures)} hold\n"
    yield "| figure | measured | goal | |"
    yield "|---|---|---|---|"
    for figure in all_figures:
        bound = "at least" if figure.at_least else "at most"
        yield (
            f"| {figure.name} | {_spread(figure.rounds)} {figure.unit} | {bound} {figure.goal:g} {figure.unit} | "
            f"{'holds' if figure.holds else '**does not hold**'} |"
        )


def _table(database: str, runs: Runs) -> Iterator[str]:
    yield "| contender | S | ms a step | last tenth | CPU ms | bytes | other operations, ms |"
    yield "|---|---|---|---|---|---|---|"
    for contender in CONTENDERS:
        for (of_database, steps, key), own in runs.items():
            if (of_database, key) != (database, contender.key):
                continue
            names = own[0].operations
            operations = ", ".join(
                f"{name} {statistics.median(run.operations[name] for run in own):.3g}" for name in names
            )
            yield (
                f"| {contender.title} | {steps:,} | {_spread([run.median for run in own])} "
                f"| {statistics.median(run.last_tenth for run in own):.3g} "
                f"| {statistics.median(run.cpu for run in own):.3g} "
                f"| {statistics.median(run.stored for run in own):,.0f} | {operations} |"
            )


def _chart(database: str, runs: Runs) -> str:
    lines = {}
    for contender in CONTENDERS:
        points = [
            (float(steps), statistics.median(run.median for run in own))
            for (of_database, steps, key), own in runs.items()
            if (of_database, key) == (database, contender.key)
        ]
        if points:
            lines[contender.title.strip("*")] = points
    return line_chart(f"A durable step on {database}", "steps in the session", "ms a step", lines)


def _spread(rounds: "list[float] | tuple[float, ...]") -> str:
    return f"{statistics.median(rounds):.3g} ({min(rounds):.3g} to {max(rounds):.3g})"
