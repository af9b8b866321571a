"""A durable step of all contenders, one after the other in each round: its time, CPU, bytes, and single operations."""

import statistics
from collections.abc import Iterator, Mapping, Sequence

from benchmarks.children import say
from benchmarks.contenders import CONTENDERS, Contender, Run, rival_versions, run
from benchmarks.results import spread
from benchmarks.rows import PLAIN_MS, Chart, Measured, Row, Table, compared
from benchmarks.sizes import Sizes
from tools.services import Postgres, running_postgres

# By number of steps and contender: a run of each round.
Runs = Mapping[tuple[int, str], Sequence[Run]]

# The rivals that record the model's reply and each call by themselves, and the greatest ratio to each.
STEP_GOALS = {"SQLite": {"dbos": 0.9, "delta-2": 0.9}, "PostgreSQL": {"dbos": 0.7, "delta-2": 0.9}}
# Milliseconds, by the number of steps; None holds for every number.
OPERATION_GOALS: dict[str, dict[int | None, float]] = {
    "load to go on": {1000: 25.0, 5000: 150.0},
    "fork": {None: 3.0},
    "rewind": {None: 3.0},
    "newest 20 checkpoints": {None: 1.0},
}
# Whose operations are shown beside, as those of the rivals that keep each call apart.
OPERATIONS_RIVAL = "delta-2"
CPU_GOAL, BYTES_GOAL, LAST_TENTH_GOAL = 1.2, 4600, 6.0
TITLES = {contender.key: contender.title for contender in CONTENDERS}


def on_sqlite(sizes: Sizes) -> Measured:
    return _measure("SQLite", sizes, None)


def on_postgresql(sizes: Sizes) -> Measured:
    with running_postgres(durable=True) as postgres:
        return _measure("PostgreSQL", sizes, postgres)


def _measure(database: str, sizes: Sizes, postgres: Postgres | None) -> Measured:
    runs: dict[tuple[int, str], list[Run]] = {}
    for number, steps, contender in schedule(database, sizes):
        measured = run(contender, steps, postgres)
        runs.setdefault((steps, contender.key), []).append(measured)
        say(
            f"round {number}, {database}, {steps:>5} steps, {contender.key:<10} "
            f"{measured.median:7.2f} ms a step, {measured.cpu:5.2f} ms CPU, {measured.stored:6.0f} bytes"
        )
    return Measured(
        list(rows(database, runs)),
        [_table(database, runs)],
        [_chart(database, runs)],
        facts={"step_ms": {f"{steps} {key}": _median(own, "median") for (steps, key), own in runs.items()}},
        versions=rival_versions() if sizes.rivals else {},
    )


def schedule(database: str, sizes: Sizes) -> Iterator[tuple[int, int, Contender]]:
    """Round, number of steps and contender: the contenders interleaved, so that all meet the same machine."""
    for number in range(1, sizes.rounds + 1):
        for steps in sizes.steps:
            for contender in CONTENDERS:
                if contender.rival and not sizes.rivals:
                    continue
                if steps <= contender.most and database in contender.databases:
                    yield number, steps, contender


def rows(database: str, runs: Runs) -> Iterator[Row]:
    for (steps, key), own in runs.items():
        if key == "agentstate":
            yield from _rows_of(database, steps, own, runs)


def _rows_of(database: str, steps: int, own: Sequence[Run], runs: Runs) -> Iterator[Row]:
    where = f"{database}, S = {steps:,}"
    times = [run.median for run in own]
    goals = STEP_GOALS[database]
    for key, title in TITLES.items():
        if key != "agentstate" and (others := runs.get((steps, key))):
            theirs = [run.median for run in others]
            yield compared(f"{where}: a step", times, theirs, "ms", rival=title, goal=goals.get(key))
    others = runs.get((steps, "messages"))
    if steps == 1000 and others:
        tenths = [run.last_tenth for run in own]
        # How many times faster: the other way round than the ratio of a step.
        ratios = tuple(b.last_tenth / a for a, b in zip(tenths, others, strict=True))
        name = f"{where}: a step in the last tenth, how many times faster"
        yield Row(name, tuple(tenths), "ms", LAST_TENTH_GOAL, True, f"{TITLES['messages']}", ratios)
    # Of few steps the first ones, which warm up, are too large a part.
    cpu = CPU_GOAL if steps >= 1000 else None
    yield Row(f"{where}: CPU of a step", tuple(run.cpu for run in own), "ms", cpu)
    if plain := runs.get((steps, "bare")):
        # The goal in milliseconds was set where the plain agent takes `rows.PLAIN_MS`.
        goal = CPU_GOAL / PLAIN_MS if steps >= 1000 else None
        mine, theirs = ([run.cpu for run in each] for each in (own, plain))
        yield compared(f"{where}: CPU of a step", mine, theirs, "ms", rival=TITLES["bare"], goal=goal)
    stored = BYTES_GOAL if steps == 1000 else None
    yield Row(f"{where}: stored for a step", tuple(run.stored for run in own), "bytes", stored)
    for operation, by_steps in OPERATION_GOALS.items():
        goal = by_steps.get(steps, by_steps.get(None))
        taken = tuple(run.operations[operation] for run in own)
        yield Row(f"{where}: {operation}", taken, "ms", goal)
        others = runs.get((steps, OPERATIONS_RIVAL), ())
        if others and operation in others[0].operations:
            theirs = [run.operations[operation] for run in others]
            yield compared(f"{where}: {operation}", taken, theirs, "ms", rival=TITLES[OPERATIONS_RIVAL])


def _table(database: str, runs: Runs) -> Table:
    lines = []
    for contender in CONTENDERS:
        for (steps, key), own in runs.items():
            if key != contender.key:
                continue
            operations = ", ".join(
                f"{name} {statistics.median(run.operations[name] for run in own):.3g}"
                for name in own[0].operations
            )
            lines.append(
                (
                    contender.title,
                    f"{steps:,}",
                    spread([run.median for run in own]),
                    f"{_median(own, 'last_tenth'):.3g}",
                    f"{_median(own, 'cpu'):.3g}",
                    f"{_median(own, 'stored'):,.0f}",
                    operations,
                )
            )
    head = ("contender", "S", "ms a step", "last tenth", "CPU ms", "bytes", "other operations, ms")
    return Table(f"Steps on {database}", head, tuple(lines))


def _chart(database: str, runs: Runs) -> Chart:
    lines: dict[str, list[tuple[float, float]]] = {}
    for contender in CONTENDERS:
        points = [
            (float(steps), _median(own, "median"))
            for (steps, key), own in runs.items()
            if key == contender.key
        ]
        if points:
            lines[contender.title.strip("*")] = points
    title = f"A durable step on {database}"
    return Chart(f"steps-{database.lower()}.svg", title, "steps in the session", "ms a step", lines)


def _median(own: Sequence[Run], field: str) -> float:
    values: list[float] = [getattr(run, field) for run in own]
    return statistics.median(values)
