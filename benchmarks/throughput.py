"""How many sessions Celery workers with threads run at once, with a model that takes its time.

    python -m benchmarks.throughput [--processes 1] [--sessions 150] [--steps 6] [--connections 10] [--model-ms 300]

Starts a PostgreSQL that waits for the disk, a Redis and the workers, and prints replies a second, the latency of a step
beside that of one session alone, the CPU of a step, and the most connections that the server saw.
"""

import argparse
import os
import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, LiteralString

import psycopg

from tools.processes import CELERY, MANAGE, Process, environment, run, running
from tools.services import running_postgres, running_redis, wait_for

TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Measured:
    replies: float
    step_ms: float
    cpu_ms: float
    connections: int

    def __str__(self) -> str:
        return (
            f"{self.replies:6.0f} replies/s, {self.step_ms:6.0f} ms a step, "
            f"{self.cpu_ms:5.2f} ms CPU a step, {self.connections} connections at most"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--sessions", type=int, default=150, help="in flight, over all processes")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--connections", type=int, default=10, help="of each process")
    parser.add_argument("--model-ms", type=int, default=300)
    options = parser.parse_args()
    threads = -(-options.sessions // options.processes)
    with ExitStack() as stack:
        postgres = stack.enter_context(running_postgres(durable=True))
        redis = stack.enter_context(running_redis())
        env = environment(
            DATABASE_URL=postgres.new_database(),
            REDIS_URL=redis.url,
            SECRET_KEY="only for benchmarks",
            AGENTSTATE_AGENTS="benchmarks.waiting_agent",
            AGENTSTATE_CONNECTIONS=str(options.connections),
            AGENTSTATE_MIRROR="false",
            AGENTSTATE_BENCH_MODEL_MS=str(options.model_ms),
            AGENTSTATE_BENCH_STEPS=str(options.steps),
            LOG_LEVEL="WARNING",
        )
        migrated = run((*MANAGE, "migrate", "-v0"), env)
        assert migrated.returncode == 0, migrated.stderr
        workers = [
            stack.enter_context(
                running(
                    (*CELERY, "worker", "-P", "threads", "-c", str(threads), "-n", f"bench{number}@%h"), env
                )
            )
            for number in range(options.processes)
        ]
        stack.enter_context(running((*CELERY, "beat"), env))
        with psycopg.connect(env["DATABASE_URL"], autocommit=True) as database:
            wait_for(
                lambda: _one(database, "SELECT count(*) FROM sessions_app_registeredagent"), "a worker", 120
            )
            for name, sessions in (("alone", 1), ("together", options.sessions)):
                print(f"{name:>8}: {measure(sessions, env, workers, database)}", flush=True)


def measure(
    sessions: int, env: dict[str, str], workers: Sequence[Process], database: psycopg.Connection[Any]
) -> Measured:
    """Start so many sessions at once, and wait until all are done."""
    cpu = sum(map(_cpu_seconds, workers))
    code = f"from benchmarks.waiting_agent import start; start({sessions})"
    started = run((*MANAGE, "shell", "-v0", "-c", code), env)
    assert started.returncode == 0, started.stderr
    most = 0
    while _one(database, "SELECT count(*) FROM sessions_app_session WHERE phase <> 'done'"):
        # This connection does not count.
        others = "SELECT count(*) - 1 FROM pg_stat_activity WHERE datname = current_database()"
        most = max(most, _one(database, others))
        time.sleep(0.2)
    # From reply to reply of one session, and from the first request to the last reply of all.
    newest = "branch_id IN (SELECT branch_id FROM sessions_app_session ORDER BY created_at DESC LIMIT %s)"
    steps, seconds = database.execute(
        "SELECT count(*), extract(epoch FROM max(ended_at) - min(started_at))::float"
        f" FROM sessions_app_modelcall WHERE {newest}",
        [sessions],
    ).fetchone() or (0, 0.0)
    gaps = database.execute(
        "SELECT extract(epoch FROM ended_at - lag(ended_at) OVER (PARTITION BY branch_id ORDER BY position))::float"
        f" FROM sessions_app_modelcall WHERE {newest}",
        [sessions],
    ).fetchall()
    step = statistics.median(gap for (gap,) in gaps if gap is not None)
    used = sum(map(_cpu_seconds, workers)) - cpu
    return Measured(steps / seconds, step * 1000, used / steps * 1000, most)


def _one(database: psycopg.Connection[Any], query: LiteralString) -> int:
    row = database.execute(query).fetchone()
    return int(row[0]) if row else 0


def _cpu_seconds(process: Process) -> float:
    with open(f"/proc/{process.pid}/stat") as stat:
        fields = stat.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


if __name__ == "__main__":
    main()
