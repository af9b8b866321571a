"""Open pages, by polling and by server-sent events: how soon after its commit a step is shown, and the CPU it takes."""

import time
from dataclasses import dataclass, field
from typing import LiteralString

from benchmarks.children import say
from benchmarks.first_request import high
from benchmarks.installation import Installation, cpu_seconds, installed
from benchmarks.open_pages import OpenPage, open_pages
from benchmarks.rows import Measured, Row
from benchmarks.sizes import Sizes
from tools.services import wait_for

MODEL_MS = 2000
# Of one login, as the server lets it have streams.
PAGES_OF_LOGIN = 4
SHOWN_GOAL_MS = {"polling": 1000, "server-sent events": 200}
CORES_GOAL = {"polling": 0.5, "server-sent events": 0.1}


@dataclass(slots=True)
class Rounds:
    """What was measured of one way to hear of news, round by round."""

    medians: list[float] = field(default_factory=list)
    highs: list[float] = field(default_factory=list)
    cores: list[float] = field(default_factory=list)
    database_cores: list[float] = field(default_factory=list)
    requests: list[float] = field(default_factory=list)


def measure(sizes: Sizes) -> Measured:
    rounds = {way: Rounds() for way in SHOWN_GOAL_MS}
    for number in range(1, sizes.rounds + 1):
        with installed(threads=sizes.running, AGENTSTATE_BENCH_MODEL_MS=str(MODEL_MS)) as installation:
            sessions = _sessions(installation, sizes)
            for way, measured in rounds.items():
                _measure(installation, sessions, sizes, measured, by_events=way != "polling")
                shown = f"shown after {measured.medians[-1]:.0f} ms, p95 {measured.highs[-1]:.0f}"
                say(f"round {number}, {way}: {shown}; {measured.cores[-1]:.2f} cores")
    return Measured([row for way, measured in rounds.items() for row in _rows(way, measured, sizes)])


def _measure(
    installation: Installation, sessions: list[str], sizes: Sizes, measured: Rounds, *, by_events: bool
) -> None:
    with installation.web_server(asgi=by_events) as (address, server):
        code = "from benchmarks.people import print_cookies; print_cookies({})"
        cookies = installation.shell(code.format(-(-len(sessions) // PAGES_OF_LOGIN))).split()
        pages = [OpenPage(key, cookies[number // PAGES_OF_LOGIN]) for number, key in enumerate(sessions)]
        with open_pages(address, pages) as keep_open:
            assert all(bool(page.stream) == by_events for page in pages)
            before, opened = sum(page.requests for page in pages), time.time()
            begun, cpu, of_database = time.monotonic(), cpu_seconds(server.pid), installation.database_cpu()
            keep_open(sizes.seconds)
            seconds = time.monotonic() - begun
            measured.cores.append((cpu_seconds(server.pid) - cpu) / seconds)
            measured.database_cores.append((installation.database_cpu() - of_database) / seconds)
            measured.requests.append((sum(page.requests for page in pages) - before) / seconds)
        delays = _delays(installation, pages, opened)
    measured.medians.append(sorted(delays)[len(delays) // 2])
    measured.highs.append(high(delays))


def _rows(way: str, rounds: Rounds, sizes: Sizes) -> list[Row]:
    where = f"{sizes.open_pages} open pages, {sizes.running} of running sessions, by {way}"
    shown = f"a step from its commit to an open page by {way}"
    return [
        Row(f"{shown}, median", tuple(rounds.medians), "ms", SHOWN_GOAL_MS[way]),
        Row(f"{shown}, p95", tuple(rounds.highs), "ms"),
        Row(f"{where}: CPU of the web server", tuple(rounds.cores), "cores", CORES_GOAL[way]),
        Row(
            f"{where}: CPU of PostgreSQL, the sessions' steps included", tuple(rounds.database_cores), "cores"
        ),
        Row(f"{where}: requests", tuple(rounds.requests), "a second"),
    ]


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
