"""What it costs that a session gives way: the next wake-up claims it, and loads what there is to go on from.

The program, `python -m benchmarks.slices`, works on the database of DATABASE_URL. It runs some steps of a session, each
in a slice of its own, and as many in one go. Where the next slice is that of another process, what this one has kept
of the session is dropped in between. Sending the wake-up is not part of it.
"""

import argparse
import json
import os
import sys
import time

from benchmarks import workload
from benchmarks.leases import SERVER, WORKER, backend_cpu, of_both_sides
from benchmarks.rows import Measured
from benchmarks.sizes import Sizes
from benchmarks.steps import RECURSION, Stub, prepare_desk, start_django

SLICES = 20
SHORT = 10  # with those of the slices, 20 on average


def measure(sizes: Sizes) -> Measured:
    # The longest but one: the longest takes minutes.
    long = sorted(sizes.steps)[-2:][0]
    return of_both_sides(
        sizes,
        "giving way, and being taken up",
        "benchmarks.slices",
        "--steps",
        str(long),
        costs=(f"{_where(SHORT, False)}, {WORKER}", f"{_where(SHORT, False)}, {SERVER}"),
    )


def report(long: int) -> dict[str, float]:
    """Milliseconds for one slice, by where it is taken up."""
    prepare_desk()
    run(SHORT, same=True)  # warm up
    taken: dict[str, float] = {}
    for steps in (SHORT, long):
        for same in (False, True):
            worker, server = run(steps, same=same)
            taken |= {
                f"{_where(steps, same)}, {WORKER}": worker * 1000,
                f"{_where(steps, same)}, {SERVER}": server * 1000,
            }
    return taken


def run(steps: int, *, same: bool) -> tuple[float, float]:
    """Seconds of CPU of this process and of the server that a slice costs, behind so many steps of a session."""
    from sessions_app import actions
    from sessions_app.access.roles import Actor
    from sessions_app.runtime.kept_contexts import kept_contexts
    from sessions_app.runtime.worker import drive

    Stub.steps, Stub.report = steps + 2 * SLICES + 1, workload.Report()
    session = actions.start(actor=Actor.system("benchmark"), agent="bench", message="Go.")

    def drive_for(slices: int) -> str:
        """Run the session until it has begun so many steps more, and gives way."""
        until = len(Stub.report.begun) + slices
        return drive(
            session.pk,
            worker="benchmark",
            slice_seconds=0,
            others_wait=lambda: len(Stub.report.begun) >= until,
        )

    def taken(slices: int, of: int) -> tuple[float, float]:
        """The seconds that so many slices of so many steps take."""
        seconds = [0.0, 0.0]
        for _ in range(slices):
            if not same:
                kept_contexts.cache_clear()
            worker, server = time.process_time(), backend_cpu()
            assert drive_for(of) == "queued"
            seconds[0] += time.process_time() - worker
            seconds[1] += backend_cpu() - server
        return seconds[0], seconds[1]

    drive_for(steps)
    in_slices, in_one = taken(SLICES, 1), taken(1, SLICES)
    # That the run in one go was taken up once, too.
    each = [(many - one) / (SLICES - 1) for many, one in zip(in_slices, in_one, strict=True)]
    return each[0], each[1]


def _where(steps: int, same: bool) -> str:
    return f"with {steps + SLICES // 2} steps by {'the same' if same else 'another'} process"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=1_000)
    options = parser.parse_args()
    sys.setrecursionlimit(RECURSION)
    start_django(os.environ["DATABASE_URL"])
    print(json.dumps(report(options.steps)))


if __name__ == "__main__":
    main()
