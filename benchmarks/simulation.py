"""Simulates very many sessions: workers with threads, their pools of connections, and one PostgreSQL.

What a step costs is taken from what was measured (`benchmarks.throughput`, `benchmarks.leases`, `benchmarks.slices`).
The arrangements of the first are simulated before others, to see how far model and measurement agree; then the sessions
of `docs/scaling.md`.
"""

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace

from benchmarks.children import say
from benchmarks.events import Process, Resource, Simulation
from benchmarks.rows import Measured, Record, Row, Table, compared
from benchmarks.sizes import Sizes

COMMITS = 2
# As they are by default. Slices are tried once for each model: with fewer threads sessions have to give way.
HEARTBEAT_SECONDS, SLICE_SECONDS = 5.0, 20.0
# Of a worker process: as many as were measured in one.
THREADS = 150
# In times of the model: what of a simulated run does not count, and how long it is.
WARM_UP, LASTS = 1.5, 3.0
# Of the arrangements that were measured, whose sessions are few and whose model takes little time.
LASTS_VALIDATED = 60.0
# What the greatest simulation is tried with: seconds that the model takes, and cores of PostgreSQL.
MODEL_SECONDS = (10.0, 30.0)
DATABASE_CORES = (16, 32, 64)
CONNECTIONS = 3
# A step is late where storing it takes longer than this part of what its model takes.
LATE = 0.2


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds of one step: CPU in its worker, CPU of PostgreSQL, and what each of its commits waits besides.

    lease_worker, lease_database: CPU for renewing one lease.
    slice_worker, slice_database: CPU for beginning and ending a slice.
    """

    worker: float
    database: float
    commit_wait: float
    lease_worker: float
    lease_database: float
    slice_worker: float = 0.0
    slice_database: float = 0.0


@dataclass(frozen=True, slots=True)
class Arrangement:
    """
    connections: of each process.
    shared_cores: of the one machine on which workers and PostgreSQL run; None where each worker has a core of its own.
    varies: whether the model takes between half and one and a half of its time.
    lasts: how many times that time is simulated.
    slice_seconds: after which a session gives way, at the end of a step; inf where nothing waits for a thread.
    """

    sessions: int
    processes: int
    connections: int
    model_seconds: float
    database_cores: int
    shared_cores: int | None = None
    varies: bool = True
    lasts: float = LASTS
    slice_seconds: float = math.inf


@dataclass(frozen=True, slots=True)
class Outcome:
    """
    stored: seconds of each step besides the model's, sorted.
    database, workers: how much of their time they were busy, of 1.
    """

    steps: float
    stored: list[float]
    database: float
    workers: float

    def percentile(self, share: float) -> float:
        return self.stored[min(len(self.stored) - 1, int(len(self.stored) * share))] if self.stored else 0.0


class Installation:
    """The simulated processes of one arrangement."""

    def __init__(self, arrangement: Arrangement, costs: Costs, seed: int = 1) -> None:
        self._chance = random.Random(seed)
        self._simulation = Simulation()
        self._arrangement, self._costs = arrangement, costs
        self._cores = Resource(arrangement.shared_cores) if arrangement.shared_cores else None
        self._database = self._cores or Resource(arrangement.database_cores)
        # Python runs one thread of a process at a time.
        self._processes = [Resource(1) for _ in range(arrangement.processes)]
        self._pools = [Resource(arrangement.connections) for _ in range(arrangement.processes)]
        self._stored: list[float] = []
        self._database_seconds = self._worker_seconds = 0.0

    def run(self) -> Outcome:
        model = self._arrangement.model_seconds
        end, begin = model * self._arrangement.lasts, model * WARM_UP
        for number in range(self._arrangement.sessions):
            self._simulation.begin(
                self._session(number % len(self._processes), begin), self._chance.random() * model
            )
        for number in range(len(self._processes)):
            self._simulation.begin(self._heartbeat(number, begin), self._chance.random() * HEARTBEAT_SECONDS)
        self._simulation.run(end)
        seconds = end - begin
        return Outcome(
            steps=len(self._stored) / seconds,
            stored=sorted(self._stored),
            database=self._database_seconds / seconds / self._database.size,
            workers=self._worker_seconds / seconds / len(self._processes),
        )

    def _session(self, process: int, begin: float) -> Process:
        simulation, costs = self._simulation, self._costs
        model = self._arrangement.model_seconds
        until = self._chance.random() * self._arrangement.slice_seconds
        while True:
            if simulation.now >= until:
                until = simulation.now + self._arrangement.slice_seconds
                yield from self._python(process, costs.slice_worker, begin)
                yield from self._in_pool(process, costs.slice_database, begin)
            yield model * (0.5 + self._chance.random()) if self._arrangement.varies else model
            replied = simulation.now
            for _ in range(COMMITS):
                yield from self._python(process, costs.worker / COMMITS, begin)
                yield from self._in_pool(process, costs.database / COMMITS, begin, costs.commit_wait)
            if simulation.now >= begin:
                self._stored.append(simulation.now - replied)

    def _heartbeat(self, process: int, begin: float) -> Process:
        """Renews the leases of the sessions of one process, all by one transaction."""
        claims = self._arrangement.sessions / len(self._processes)
        while True:
            yield from self._python(process, claims * self._costs.lease_worker, begin)
            yield from self._in_pool(process, claims * self._costs.lease_database, begin)
            yield HEARTBEAT_SECONDS

    def _python(self, process: int, average: float, begin: float) -> Process:
        """CPU of a worker: its turn, and a core where the machine has few."""
        seconds = self._varied(average)
        yield self._processes[process]
        if self._cores is None:
            yield seconds
        else:
            yield from self._simulation.use(self._cores, seconds)
        self._simulation.give_back(self._processes[process])
        if self._simulation.now >= begin:
            self._worker_seconds += seconds

    def _in_pool(self, process: int, average: float, begin: float, wait: float = 0.0) -> Process:
        """CPU of PostgreSQL, on a connection that is also held while the commit waits."""
        seconds = self._varied(average)
        yield self._pools[process]
        yield from self._simulation.use(self._database, seconds)
        if self._simulation.now >= begin:
            self._database_seconds += seconds
        yield wait
        self._simulation.give_back(self._pools[process])

    def _varied(self, average: float) -> float:
        return self._chance.expovariate(1 / average) if average else 0.0


def measure(sizes: Sizes, throughput: Record, leases: Record, slices: Record) -> Measured:
    runs = throughput.measured.facts["runs"]
    others = {
        f"{of}_{name.removesuffix('_ms')}": milliseconds / 1000
        for of, record in (("lease", leases), ("slice", slices))
        for name, milliseconds in record.measured.facts.items()
    }
    rows = [row for run in runs for row in _validated(run, costs_of(run, others))]
    # Of the run with most sessions in flight, where what happens besides steps is the smallest part.
    costs = costs_of(max(runs, key=lambda run: run["in_flight"]), others)
    lines = [_line(arrangement, costs) for arrangement in arrangements(sizes.simulated, costs)]
    head = (
        *("sessions", "model, s", "slice, s", "workers", "connections", "cores of PostgreSQL", "steps/s"),
        *("PostgreSQL busy", "a worker busy", "storing a step, median ms", "p95 ms", "first limit"),
    )
    facts = {f"{name}_ms": seconds * 1000 for name, seconds in asdict(costs).items()}
    return Measured(rows, [Table("Simulated", head, tuple(lines))], facts={"costs": facts})


def costs_of(run: Mapping[str, float], others: Mapping[str, float]) -> Costs:
    """What was measured, in seconds. What a session alone waited and nothing computed, its commits waited for."""
    worker, database = run["worker_ms"] / 1000, run["database_ms"] / 1000
    besides = (run["alone_ms"] - run["model_ms"]) / 1000 - worker - database
    return Costs(worker, database, max(0.0005, besides / COMMITS), **others)


def _validated(run: Mapping[str, float], costs: Costs) -> list[Row]:
    """The same arrangement as was measured, on the cores that workers and server shared there with the search."""
    costs = replace(costs, database=costs.database + run["search_ms"] / 1000)
    arrangement = Arrangement(
        sessions=int(run["sessions"]),
        processes=int(run["processes"]),
        connections=int(run["pool"]),
        model_seconds=run["model_ms"] / 1000,
        database_cores=0,
        shared_cores=int(run["cores"]),
        varies=False,
        lasts=LASTS_VALIDATED,
    )
    outcome = Installation(arrangement, costs).run()
    model = f"model {run['model_ms']:,.0f} ms"
    where = f"{arrangement.sessions} in flight, processes: {arrangement.processes}, {model}"
    step = run["model_ms"] + outcome.percentile(0.5) * 1000
    say(f"{where}: simulated {outcome.steps:.0f} replies/s, {step:.0f} ms a step")
    return [
        compared(
            f"{where}: replies a second, simulated",
            [outcome.steps],
            [run["replies"]],
            "",
            rival="those measured",
        ),
        compared(f"{where}: a step, simulated", [step], [run["step_ms"]], "ms", rival="that measured"),
    ]


def arrangements(sessions: int, costs: Costs) -> list[Arrangement]:
    """As many workers as the sessions need threads, or as their steps need cores, two thirds busy."""
    chosen = []
    for model in MODEL_SECONDS:
        by_cpu = sessions / model * costs.worker * 1.5
        processes = max(1, round(by_cpu), -(-sessions // THREADS))
        first = Arrangement(sessions, processes, CONNECTIONS, model, DATABASE_CORES[0])
        chosen += [replace(first, database_cores=cores) for cores in DATABASE_CORES]
        chosen.append(replace(chosen[-2], slice_seconds=SLICE_SECONDS))
    return chosen


def _line(arrangement: Arrangement, costs: Costs) -> tuple[str, ...]:
    outcome = Installation(arrangement, costs).run()
    say(f"{arrangement.sessions} sessions, {arrangement.database_cores} cores: {outcome.steps:.0f} steps/s")
    late = outcome.percentile(0.95) > LATE * arrangement.model_seconds
    limit = "none"
    if late or outcome.database > 0.9:
        limit = "PostgreSQL" if outcome.database > outcome.workers else "the workers' CPU"
    numbers: tuple[tuple[float, Callable[[float], str]], ...] = (
        (arrangement.sessions, "{:,.0f}".format),
        (arrangement.model_seconds, "{:g}".format),
        (arrangement.slice_seconds, lambda number: "none" if math.isinf(number) else f"{number:g}"),
        (arrangement.processes, "{:,.0f}".format),
        (arrangement.processes * arrangement.connections, "{:,.0f}".format),
        (arrangement.database_cores, "{:,.0f}".format),
        (outcome.steps, "{:,.0f}".format),
        (outcome.database, "{:.0%}".format),
        (outcome.workers, "{:.0%}".format),
        (outcome.percentile(0.5) * 1000, "{:,.0f}".format),
        (outcome.percentile(0.95) * 1000, "{:,.0f}".format),
    )
    return (*(show(number) for number, show in numbers), limit)
