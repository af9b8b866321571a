"""Open pages: how long after its commit a step is shown, and the CPU that the polls of many pages take."""

import time
from typing import LiteralString

from benchmarks.children import say
from benchmarks.first_request import high
from benchmarks.installation import Installation, cpu_seconds, installed
from benchmarks.open_pages import OpenPage, keep_open
from benchmarks.rows import Measured, Row
from benchmarks.sizes import Sizes
from tools.services import wait_for

MODEL_MS = 2000
SHOWN_GOAL_MS, CORES_GOAL = 1000, 0.5


def measure(sizes: Sizes) -> Measured:
    medians, highs, cores, database_cores, requests = [], [], [], [], []
    for number in range(1, sizes.rounds + 1):
        with (
            installed(threads=sizes.running, AGENTSTATE_BENCH_MODEL_MS=str(MODEL_MS)) as installation,
            installation.web_server() as (address, server),
        ):
            pages = [OpenPage(session) for session in _sessions(installation, sizes)]
            name, value = installation.shell(
                "from benchmarks.people import print_cookie; print_cookie()"
            ).split()
            keep_open(address, (name, value), pages, 0)  # warm up
            opened = time.time()
            begun, cpu, of_database = time.monotonic(), cpu_seconds(server.pid), installation.database_cpu()
            keep_open(address, (name, value), pages, sizes.seconds)
            seconds = time.monotonic() - begun
            cores.append((cpu_seconds(server.pid) - cpu) / seconds)
            database_cores.append((installation.database_cpu() - of_database) / seconds)
            requests.append(sum(page.requests for page in pages) / seconds)
            delays = _delays(installation, pages, opened)
        medians.append(sorted(delays)[len(delays) // 2])
        highs.append(high(delays))
        say(f"round {number}: shown after {medians[-1]:.0f} ms, p95 {highs[-1]:.0f}; {cores[-1]:.2f} cores")
    where = f"{sizes.open_pages} open pages, {sizes.running} of running sessions"
    return Measured(
        [
            Row("a step from its commit to an open page, median", tuple(medians), "ms", SHOWN_GOAL_MS),
            Row("a step from its commit to an open page, p95", tuple(highs), "ms"),
            Row(f"{where}: CPU of the web server by polling", tuple(cores), "cores", CORES_GOAL),
            Row(f"{where}: CPU of PostgreSQL, the sessions' steps included", tuple(database_cores), "cores"),
            Row(f"{where}: requests", tuple(requests), "a second"),
        ]
    )


def _sessions(installation: Installation, sizes: Sizes) -> list[str]:
    """Their keys: those that run come last. The others are paused, where pages poll every ten seconds."""
    at_rest = sizes.open_pages - sizes.running
    start = "from benchmarks.waiting_agent import start; start({}, {})"
    installation.shell(start.format(at_rest, 0))
    unfinished: LiteralString = "SELECT count(*) FROM sessions_app_session WHERE status <> 'idle'"
    wait_for(lambda: installation.one(unfinished) == 0, "the sessions that are then paused", 300)
    installation.database.execute("UPDATE sessions_app_session SET status = 'paused'")
    installation.shell(start.format(sizes.running, 100_000))
    rows = installation.database.execute("SELECT id FROM sessions_app_session ORDER BY created_at").fetchall()
    return [str(key) for (key,) in rows]


def _delays(installation: Installation, pages: list[OpenPage], opened: float) -> list[float]:
    """Milliseconds from the end of each call to the first answer that shows its result, of calls that ended since."""
    delays = []
    for page in pages:
        calls = installation.database.execute(
            "SELECT (call.arguments->>'number')::int, extract(epoch FROM call.ended_at)::float"
            " FROM sessions_app_toolcall call JOIN sessions_app_session session USING (branch_id)"
            " WHERE session.id = %s AND call.ended_at IS NOT NULL",
            [page.session],
        ).fetchall()
        delays += [
            (page.shown[number] - ended) * 1000
            for number, ended in calls
            if ended > opened and number in page.shown
        ]
    return delays
