"""What the heartbeat of a worker costs for each session that it runs: renewing leases, on PostgreSQL.

The program, `python -m benchmarks.leases`, works on the database of DATABASE_URL.
"""

import argparse
import json
import os
import time
from datetime import timedelta
from pathlib import Path

from benchmarks.children import ask, say
from benchmarks.rows import Measured, Row
from benchmarks.sizes import Sizes
from benchmarks.steps import start_django
from tools.processes import environment
from tools.services import running_postgres

# Of one worker process, at most; the fewest sessions that say something.
CLAIMS, FEWEST = 250, 10
BEATS = 20
# Of which side a report says what.
WORKER, SERVER = "CPU of the worker", "CPU of PostgreSQL"


def measure(sizes: Sizes) -> Measured:
    claims = max(FEWEST, min(CLAIMS, sizes.sessions))
    where = f"renewing the leases of {claims} sessions"
    return of_both_sides(sizes, where, "benchmarks.leases", "--claims", str(claims), each=claims)


def of_both_sides(
    sizes: Sizes,
    where: str,
    program: str,
    *arguments: str,
    each: int = 1,
    costs: tuple[str, str] = (WORKER, SERVER),
) -> Measured:
    """What a program reports, in milliseconds, on one connection to a new PostgreSQL that waits for the disk.

    :param each: How many of what is then simulated were measured at once.
    :param costs: Under which names the program reports what is then simulated, of the worker and of PostgreSQL.
    """
    rounds: list[dict[str, float]] = []
    for number in range(1, sizes.rounds + 1):
        with running_postgres(durable=True) as postgres:
            env = environment(DATABASE_URL=postgres.new_database(), AGENTSTATE_CONNECTIONS="1")
            rounds.append(ask(program, *arguments, env=env))
        say(f"round {number}: {rounds[-1]}")
    rows = [Row(f"{where}: {name}", tuple(report[name] for report in rounds), "ms") for name in rounds[0]]
    middle = {name: sorted(report[name] for report in rounds)[len(rounds) // 2] / each for name in costs}
    return Measured(rows, facts={"worker_ms": middle[costs[0]], "database_ms": middle[costs[1]]})


def report(claims: int) -> dict[str, float]:
    """Milliseconds for all of them, on average of some heartbeats."""
    from django.utils import timezone

    from sessions_app.models import Session, Status
    from sessions_app.runtime.leases import Claim, renew

    now = timezone.now()
    sessions = Session.objects.bulk_create(
        Session(agent="bench", status=Status.RUNNING, epoch=1, worker="bench", lease_expires_at=now)
        for _ in range(claims)
    )
    claimed = [Claim(session.pk, 1, "bench", 1, now + timedelta(minutes=1), "bench") for session in sessions]
    assert len(renew(claimed)) == claims
    begun, worker, server = time.perf_counter(), time.process_time(), backend_cpu()
    for _ in range(BEATS):
        renew(claimed)
    taken = {
        "time": time.perf_counter() - begun,
        WORKER: time.process_time() - worker,
        SERVER: backend_cpu() - server,
    }
    return {name: seconds / BEATS * 1000 for name, seconds in taken.items()}


def backend_cpu() -> float:
    """Seconds of CPU of this connection's PostgreSQL backend, if it runs on this machine."""
    from django.db import connection

    if connection.vendor != "postgresql":
        return 0.0
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        (pid,) = cursor.fetchone()
    # Nanoseconds of the process, where the system counts them; ticks of ten milliseconds are too coarse.
    schedule = Path(f"/proc/{pid}/schedstat")
    return int(schedule.read_text().split()[0]) / 1e9 if schedule.exists() else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--claims", type=int, default=CLAIMS)
    options = parser.parse_args()
    start_django(os.environ["DATABASE_URL"])
    print(json.dumps(report(options.claims)))


if __name__ == "__main__":
    main()
