"""From `manage.py up` to its first page: on a new database with the demo, and started again on the same."""

import time
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx

from benchmarks.children import say
from benchmarks.rows import Measured, Row
from benchmarks.sizes import Sizes
from tools.processes import MANAGE, environment, running

GOAL_SECONDS = 5
ADDRESS = r"AgentState is at (http://[\d.:]+)/"


def measure(sizes: Sizes) -> Measured:
    first, again = [], []
    for number in range(1, sizes.rounds + 1):
        with TemporaryDirectory(prefix="agentstate-bench-") as folder:
            first.append(_seconds(Path(folder)))
            again.append(_seconds(Path(folder)))
        say(f"round {number}: {first[-1]:.1f} s, again {again[-1]:.1f} s")
    return Measured(
        [
            Row(
                "`manage.py up` on a new database with the demo, to the first page",
                tuple(first),
                "s",
                GOAL_SECONDS,
            ),
            Row("`manage.py up` started again, to the first page", tuple(again), "s", GOAL_SECONDS),
        ]
    )


def _seconds(folder: Path) -> float:
    env = environment(
        DATABASE_URL=f"sqlite:///{folder / 'db.sqlite3'}",
        STATIC_ROOT=str(folder / "static"),
        SECRET_KEY="only for benchmarks",
        AGENTSTATE_DEMO_DIR=str(folder / "demo"),
    )
    begun = time.perf_counter()
    with running((*MANAGE, "up", "--port", "0"), env) as process:
        address = process.wait_for_output(ADDRESS, 600)[1]
        httpx.get(f"{address}/login/").raise_for_status()
        return time.perf_counter() - begun
