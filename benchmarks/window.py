"""How long after the commit of a reply its call begins: a worker that dies in between leaves a doubt that need not be.

    python -m benchmarks.window [--sessions 150] [--steps 20]

The program works on the database of DATABASE_URL. It drives so many sessions in threads of one process, each with a
stub model that takes 300 ms where there is more than one, and notes the time from the end of the commit to the first
line of the tool.
"""

import argparse
import json
import os
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any
from unittest import mock

from benchmarks import workload
from benchmarks.children import ask, say
from benchmarks.contenders import database
from benchmarks.rows import Measured, Row
from benchmarks.sizes import Sizes
from benchmarks.steps import RECURSION, Stub, prepare_desk, start_django
from benchmarks.throughput import MODEL_MS
from tools.processes import environment
from tools.services import running_postgres

if TYPE_CHECKING:
    from sessions_app.runtime.journal import OrmJournal

STEPS, STEPS_OF_EACH = 500, 20


def measure(sizes: Sizes) -> Measured:
    _, together = sizes.in_flight[0]
    rows: list[Row] = []
    for name in sizes.databases:
        for sessions in sorted({1, together}) if name == "PostgreSQL" else (1,):
            rounds = []
            for number in range(1, sizes.rounds + 1):
                rounds.append(_ask(name, sessions, max(sizes.steps)))
                say(f"round {number}, {name}, {sessions} sessions: {rounds[-1]}")
            where = f"{name}, {sessions} in one process" if sessions > 1 else f"{name}, one session"
            rows += [
                Row(
                    f"{where}: commit of the reply to the call, {which}",
                    tuple(r[which] for r in rounds),
                    "ms",
                )
                for which in rounds[0]
            ]
    return Measured(rows)


def _ask(name: str, sessions: int, most: int) -> dict[str, float]:
    with ExitStack() as stack:
        server = stack.enter_context(running_postgres(durable=True)) if name == "PostgreSQL" else None
        env = environment(DATABASE_URL=stack.enter_context(database(server)))
        steps = min(most, STEPS if sessions == 1 else STEPS_OF_EACH)
        options = ("--sessions", str(sessions), "--steps", str(steps))
        times: dict[str, float] = ask("benchmarks.window", *options, env=env)
        return times


class WaitingReport(workload.Report):
    def step_begins(self) -> None:
        time.sleep(MODEL_MS / 1000)


def report(sessions: int, steps: int) -> dict[str, float]:
    """Milliseconds: the median, and the 95th percentile."""
    from agentstate import idempotency_key
    from sessions_app import actions
    from sessions_app.access.roles import Actor
    from sessions_app.runtime.connection import forget_connections
    from sessions_app.runtime.journal import OrmJournal
    from sessions_app.runtime.worker import drive

    committed: dict[str, float] = {}
    took: list[float] = []
    commit, answer = OrmJournal.reply, workload.result

    def reply(journal: "OrmJournal", *arguments: Any, **named: Any) -> Any:
        checkpoint = commit(journal, *arguments, **named)
        now = time.perf_counter()
        committed.update((call.idempotency_key, now) for call in checkpoint.calls)
        return checkpoint

    def result(number: int) -> str:
        took.append((time.perf_counter() - committed[idempotency_key()]) * 1000)
        return answer(number)

    prepare_desk()
    Stub.steps = steps
    Stub.report = workload.Report() if sessions == 1 else WaitingReport()
    actor = Actor.system("benchmark")
    keys = [actions.start(actor=actor, agent="bench", message="Go.").pk for _ in range(sessions)]

    def run(key: Any) -> None:
        try:
            assert drive(key, worker="benchmark", slice_seconds=100_000) == "idle"
        finally:
            forget_connections()

    with (
        mock.patch.object(OrmJournal, "reply", reply),
        mock.patch.object(workload, "result", result),
        ThreadPoolExecutor(sessions) as threads,
    ):
        list(threads.map(run, keys))
    assert len(took) == sessions * Stub.steps
    return {"median": statistics.median(took), "p95": statistics.quantiles(took, n=20)[-1]}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sessions", type=int, default=1)
    parser.add_argument("--steps", type=int, default=STEPS, help="of each session")
    options = parser.parse_args()
    sys.setrecursionlimit(RECURSION)
    workload.prepare(os.environ["DATABASE_URL"])
    start_django(os.environ["DATABASE_URL"])
    print(json.dumps(report(options.sessions, options.steps)))


if __name__ == "__main__":
    main()
