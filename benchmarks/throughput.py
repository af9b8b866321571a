"""How many sessions Celery workers with threads run at once, with a model that takes its time.

A process of its own adds to the search, as is advised where a worker has many threads (docs/operations.md). Of each
arrangement: one session alone, then all together. Only what happens while all are in flight counts. The mirror is off,
but for one arrangement.
"""

import math
import os
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from itertools import pairwise

from benchmarks.children import say
from benchmarks.installation import NAME_OF_WORKERS, Installation, installed, memory_mb
from benchmarks.rows import Measured, Row, Table, compared
from benchmarks.sizes import Sizes

MODEL_MS = 300
# Where the cores are fewer than as many sessions need with that model, it is they that are measured. With this one the
# largest number of sessions takes a core and a half, so it shows what else limits them.
SLOW_MODEL_MS = 1500
# With so many in flight a step may take longer than that of one session alone by a fifth.
LATENCY_GOAL, CONNECTIONS_GOAL = 1.2, 20
# With twice the processes a step may take so many times the CPU.
LINEAR_GOAL = 1.15
# So many connections each process may open: 20 for four of them.
CONNECTIONS = 5
NEWEST = "branch_id IN (SELECT branch_id FROM sessions_app_session ORDER BY created_at DESC LIMIT %s)"
# Replies of each session while all are in flight, at least.
ENOUGH = 3
# Threads of a worker for each of its sessions: with one to spare none gives way to the sweep at the end of a slice.
SPARE = 1.1


@dataclass(frozen=True, slots=True)
class Run:
    """
    step_ms: from reply to reply of one session, the median.
    high_ms: its 95th percentile.
    worker_ms, database_ms, search_ms: CPU of a step.
    in_flight: sessions that asked their model for the first time before any had ended.
    memory_mb: of one worker process, at most.
    """

    replies: float
    step_ms: float
    high_ms: float
    worker_ms: float
    database_ms: float
    search_ms: float
    connections: int
    in_flight: int
    memory_mb: float

    def __str__(self) -> str:
        return (
            f"{self.in_flight} in flight, {self.replies:.0f} replies/s, {self.step_ms:.0f} ms a step "
            f"(p95 {self.high_ms:.0f}), CPU {self.worker_ms:.2f} + {self.database_ms:.2f} + {self.search_ms:.2f} ms, "
            f"{self.connections} connections at most, {self.memory_mb:.0f} MB a worker"
        )


@dataclass(frozen=True, slots=True)
class Arrangement:
    processes: int
    sessions: int
    model_ms: int = MODEL_MS
    goal: float | None = LATENCY_GOAL
    mirror: bool = False

    def __str__(self) -> str:
        mirror = ", with the mirror" if self.mirror else ""
        return f"{self.sessions} in flight, processes: {self.processes}, model {self.model_ms:,} ms{mirror}"


def measure(sizes: Sizes) -> Measured:
    rows: list[Row] = []
    lines: list[tuple[str, ...]] = []
    facts = []
    with_goal = [Arrangement(processes, sessions) for processes, sessions in sizes.in_flight]
    first, last = with_goal[0], with_goal[-1]
    # Beside those that have a goal: as many sessions for each of twice as many processes.
    twice = replace(first, processes=2 * first.processes, sessions=2 * first.sessions, goal=None)
    slow = replace(last, model_ms=SLOW_MODEL_MS)
    measured: dict[Arrangement, list[Run]] = {}
    for arrangement in (*with_goal, twice, slow, replace(first, mirror=True)):
        alone, together = _rounds(arrangement, sizes)
        measured[arrangement] = together
        rows += _rows(str(arrangement), arrangement.goal, alone, together)
        if not arrangement.mirror:  # of which the simulation, which reads the facts, knows nothing
            facts.append(
                {
                    **asdict(_middle(together)),
                    "processes": arrangement.processes,
                    "sessions": arrangement.sessions,
                    "pool": pool(arrangement.processes),
                    "model_ms": arrangement.model_ms,
                    "alone_ms": statistics.median(run.step_ms for run in alone),
                    "cores": os.cpu_count(),
                }
            )
        lines += [
            (str(arrangement), name, str(_middle(runs)))
            for name, runs in (("alone", alone), ("all", together))
        ]
    rows += _beside_half(measured[twice], measured[first])
    table = Table("Sessions in flight", ("", "sessions", "the round in the middle"), tuple(lines))
    return Measured(rows, [table], facts={"runs": facts})


def _beside_half(runs: Sequence[Run], others: Sequence[Run]) -> list[Row]:
    """Twice as many sessions in twice as many processes, compared with half of both.

    Where all processes share the cores with PostgreSQL, it is the CPU of a step that says whether they would do twice
    as much with cores of their own.
    """
    figures: tuple[tuple[str, str, float | None, Callable[[Run], float]], ...] = (
        ("CPU of a step, workers", "ms", LINEAR_GOAL, lambda run: run.worker_ms),
        ("CPU of a step, PostgreSQL", "ms", None, lambda run: run.database_ms),
        ("replies", "a second", None, lambda run: run.replies),
    )
    return [
        compared(
            f"twice as many sessions in twice as many processes: {figure}",
            [value(run) for run in runs],
            [value(run) for run in others],
            unit,
            rival="half of both",
            goal=goal,
        )
        for figure, unit, goal, value in figures
    ]


def pool(processes: int) -> int:
    """Connections that each process may open: one alone has as many as is the default."""
    return CONNECTIONS if processes > 1 else 2 * CONNECTIONS


def _rounds(arrangement: Arrangement, sizes: Sizes) -> tuple[list[Run], list[Run]]:
    alone: list[Run] = []
    together: list[Run] = []
    for number in range(1, sizes.rounds + 1):
        with installed(
            processes=arrangement.processes,
            threads=math.ceil(SPARE * arrangement.sessions / arrangement.processes),
            connections=pool(arrangement.processes),
            search=True,
            AGENTSTATE_BENCH_MODEL_MS=str(arrangement.model_ms),
            AGENTSTATE_MIRROR=str(arrangement.mirror).lower(),
        ) as installation:
            for runs, count in ((alone, 1), (together, arrangement.sessions)):
                runs.append(run_sessions(installation, count, sizes.replies))
                say(f"round {number}, {arrangement}, {count} sessions: {runs[-1]}")
    return alone, together


def _rows(where: str, goal: float | None, alone: Sequence[Run], together: Sequence[Run]) -> list[Row]:
    times, single = [run.step_ms for run in together], [run.step_ms for run in alone]
    return [
        compared(
            f"{where}: a step",
            times,
            single,
            "ms",
            rival="one session alone",
            goal=goal,
        ),
        Row(f"{where}: replies", tuple(run.replies for run in together), "a second"),
        Row(f"{where}: CPU of a step, workers", tuple(run.worker_ms for run in together), "ms"),
        Row(f"{where}: CPU of a step, PostgreSQL", tuple(run.database_ms for run in together), "ms"),
        Row(f"{where}: CPU of a step, search", tuple(run.search_ms for run in together), "ms"),
        Row(f"{where}: connections", tuple(run.connections for run in together), "", CONNECTIONS_GOAL),
        Row(f"{where}: sessions that were in flight together", tuple(run.in_flight for run in together), ""),
    ]


def _middle(runs: Sequence[Run]) -> Run:
    return sorted(runs, key=lambda run: run.replies)[len(runs) // 2]


def run_sessions(installation: Installation, sessions: int, replies: int) -> Run:
    """Start so many sessions, and wait until all are done."""
    used = installation.worker_cpu, installation.database_cpu, installation.search_cpu
    before = [cpu() for cpu in used]
    code = f"from benchmarks.waiting_agent import start; start({sessions}, {replies - 1})"
    most = 0
    with ThreadPoolExecutor(1) as threads:
        starting = threads.submit(installation.shell, code)
        while not starting.done() or installation.one(
            "SELECT count(*) FROM sessions_app_session WHERE phase <> 'done'"
        ):
            # Those of what starts the sessions, and of the beat, do not count.
            of_workers = installation.one(
                "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s", NAME_OF_WORKERS
            )
            most = max(most, of_workers)
            time.sleep(0.2)
        starting.result()
    assert most, "no connection of a worker was seen"
    workers, server, search = (cpu() - earlier for cpu, earlier in zip(used, before, strict=True))
    calls = installation.database.execute(
        "SELECT branch_id, extract(epoch FROM started_at)::float, extract(epoch FROM ended_at)::float"
        f" FROM sessions_app_modelcall WHERE {NEWEST} ORDER BY branch_id, position",
        [sessions],
    ).fetchall()
    by_session: dict[int, list[tuple[float, float]]] = {}
    for branch, started, ended in calls:
        by_session.setdefault(branch, []).append((started, ended))
    first_end = min(times[-1][1] for times in by_session.values())
    begun = sorted(times[0][0] for times in by_session.values() if times[0][0] < first_end)
    begin, end = begun[-1], first_end
    if sum(begin < ended <= end for _, _, ended in calls) < ENOUGH * sessions:
        # They hardly overlapped, as few short sessions do: then all of the time is measured.
        begin, end = begun[0], max(ended for _, _, ended in calls)
    gaps = [
        (after - before) * 1000
        for times in by_session.values()
        for (_, before), (_, after) in pairwise(times)
        if begin <= before and after <= end
    ]
    return Run(
        replies=sum(begin < ended <= end for _, _, ended in calls) / (end - begin),
        step_ms=statistics.median(gaps),
        high_ms=sorted(gaps)[min(len(gaps) - 1, int(len(gaps) * 0.95))],
        worker_ms=workers / len(calls) * 1000,
        database_ms=server / len(calls) * 1000,
        search_ms=search / len(calls) * 1000,
        connections=most,
        in_flight=len(begun),
        memory_mb=max(memory_mb(worker.pid) for worker in installation.workers),
    )
