"""What it costs that a session gives way: the next wake-up claims it, and loads what there is to go on from.

The program, `python -m benchmarks.slices`, works on the database of DATABASE_URL. It runs the steps of a session in one
go, and each in a slice of its own, which loads half of them on average. Sending the wake-up is not part of it.
"""

import argparse
import json
import os
import sys
import time
from dataclasses import dataclass

from benchmarks import workload
from benchmarks.leases import SERVER, WORKER, backend_cpu, of_both_sides
from benchmarks.rows import Measured
from benchmarks.sizes import Sizes
from benchmarks.steps import RECURSION, Stub, prepare_desk, start_django

STEPS = 40


@dataclass(frozen=True, slots=True)
class Run:
    """Seconds of CPU of this process and of the server for a session, and the slices that it had."""

    worker: float
    server: float
    slices: int


def measure(sizes: Sizes) -> Measured:
    where = f"giving way, and being taken up with {STEPS // 2} steps"
    return of_both_sides(sizes, where, "benchmarks.slices")


def report() -> dict[str, float]:
    """Milliseconds for one slice."""
    prepare_desk()
    run(0)  # warm up
    whole, cut = run(100_000), run(0)
    more = cut.slices - whole.slices
    return {
        WORKER: (cut.worker - whole.worker) / more * 1000,
        SERVER: (cut.server - whole.server) / more * 1000,
    }


def run(slice_seconds: float) -> Run:
    from sessions_app import actions
    from sessions_app.access.roles import Actor
    from sessions_app.runtime.worker import drive

    Stub.steps, Stub.report = STEPS, workload.Report()
    session = actions.start(actor=Actor.system("benchmark"), agent="bench", message="Go.")
    worker, server, slices = time.process_time(), backend_cpu(), 1
    while drive(session.pk, worker="benchmark", slice_seconds=slice_seconds) == "queued":
        slices += 1
    assert len(Stub.report.begun) == STEPS + 1
    return Run(time.process_time() - worker, backend_cpu() - server, slices)


def main() -> None:
    argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0]).parse_args()
    sys.setrecursionlimit(RECURSION)
    start_django(os.environ["DATABASE_URL"])
    print(json.dumps(report()))


if __name__ == "__main__":
    main()
