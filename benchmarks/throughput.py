"""How many sessions Celery workers with threads run at once, with a model that takes its time.

A process of its own adds to the search, as is advised where a worker has many threads (docs/operations.md). Of each
arrangement: one session alone, then all together. Only what happens while all are in flight counts.
"""

import math
import os
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
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


def measure(sizes: Sizes) -> Measured:
    rows: list[Row] = []
    lines: list[tuple[str, ...]] = []
    facts = []
    _, first = sizes.in_flight[0]
    with_goal = [(processes, sessions, MODEL_MS, LATENCY_GOAL) for processes, sessions in sizes.in_flight]
    # Beside those that have a goal: as many sessions for each of two processes as for one.
    without_goal = (2, 2 * first, MODEL_MS, None)
    slow = (*sizes.in_flight[-1], SLOW_MODEL_MS, LATENCY_GOAL)
    for processes, sessions, model_ms, goal in (*with_goal, without_goal, slow):
        alone, together = _rounds(processes, sessions, model_ms, sizes)
        where = f"{sessions} in flight, processes: {processes}, model {model_ms:,} ms"
        rows += _rows(where, goal, alone, together)
        run = _middle(together)
        facts.append(
            {
                **asdict(run),
                "processes": processes,
                "sessions": sessions,
                "pool": pool(processes),
                "model_ms": model_ms,
                "alone_ms": statistics.median(run.step_ms for run in alone),
                "cores": os.cpu_count(),
            }
        )
        lines += [
            (str(processes), f"{model_ms:,} ms", name, str(_middle(runs)))
            for name, runs in (("alone", alone), ("all", together))
        ]
    table = Table("Sessions in flight", ("processes", "model", "", "the round in the middle"), tuple(lines))
    return Measured(rows, [table], facts={"runs": facts})


def pool(processes: int) -> int:
    """Connections that each process may open: one alone has as many as is the default."""
    return CONNECTIONS if processes > 1 else 2 * CONNECTIONS


def _rounds(processes: int, sessions: int, model_ms: int, sizes: Sizes) -> tuple[list[Run], list[Run]]:
    alone: list[Run] = []
    together: list[Run] = []
    threads = math.ceil(SPARE * sessions / processes)
    for number in range(1, sizes.rounds + 1):
        with installed(
            processes=processes,
            threads=threads,
            connections=pool(processes),
            search=True,
            AGENTSTATE_BENCH_MODEL_MS=str(model_ms),
        ) as installation:
            for runs, count in ((alone, 1), (together, sessions)):
                runs.append(run_sessions(installation, count, sizes.replies))
                say(f"round {number}, {processes} processes, {count} sessions: {runs[-1]}")
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
