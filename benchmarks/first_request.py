"""From starting a session to its model being asked: by a worker that is idle, that runs others, or that is full."""

from benchmarks.children import say
from benchmarks.installation import Installation, installed
from benchmarks.rows import Measured, Row
from benchmarks.sizes import Sizes
from benchmarks.throughput import MODEL_MS

GOAL_MS = 50
THREADS = 16
# Of the threads, while the worker is not idle; and so many sessions that more wait for a thread than have one.
BUSY = 8
FULL = 40
AT_ONCE = 4
WARM_UP = 3
MOST_STEPS = 100_000


def measure(sizes: Sizes) -> Measured:
    idle: list[list[float]] = []
    busy: list[list[float]] = []
    full: list[list[float]] = []
    several: list[list[float]] = []
    for number in range(1, sizes.rounds + 1):
        with installed(threads=THREADS) as installation:
            start_one_by_one(installation, WARM_UP)
            idle.append(start_one_by_one(installation, sizes.starts))
            installation.shell(f"from benchmarks.waiting_agent import start; start({BUSY}, {MOST_STEPS})")
            busy.append(start_one_by_one(installation, sizes.starts))
            more = FULL - BUSY
            installation.shell(f"from benchmarks.waiting_agent import start; start({more}, {MOST_STEPS})")
            full.append(start_one_by_one(installation, sizes.starts, behind=THREADS))
            several.append(start_one_by_one(installation, sizes.starts, behind=THREADS, at_once=AT_ONCE))
        say(
            f"round {number}: p95 {high(idle[-1]):.0f} ms idle, {high(busy[-1]):.0f} ms with {BUSY} sessions running,"
            f" {high(full[-1]):.0f} ms with {FULL}, {high(several[-1]):.0f} ms for {AT_ONCE} at once"
        )
    beside = f"{BUSY} of {THREADS} threads busy"
    behind = f"{FULL} long sessions on {THREADS} threads, model {MODEL_MS} ms"
    at_once = f"{behind}, {AT_ONCE} new ones at once"
    return Measured(
        [
            Row("idle worker: start to the model being asked, p95", tuple(map(high, idle)), "ms", GOAL_MS),
            Row("idle worker: start to the model being asked, median", tuple(map(_middle, idle)), "ms"),
            Row(f"{beside}: start to the model being asked, p95", tuple(map(high, busy)), "ms", GOAL_MS),
            Row(f"{beside}: start to the model being asked, median", tuple(map(_middle, busy)), "ms"),
            Row(f"{behind}: start to the model being asked, p95", tuple(map(high, full)), "ms", GOAL_MS),
            Row(f"{behind}: start to the model being asked, median", tuple(map(_middle, full)), "ms"),
            Row(f"{at_once}: start to the model being asked, p95", tuple(map(high, several)), "ms"),
            Row(f"{at_once}: start to the model being asked, median", tuple(map(_middle, several)), "ms"),
        ]
    )


def start_one_by_one(
    installation: Installation, sessions: int, behind: int = 0, at_once: int = 1
) -> list[float]:
    """The milliseconds that each took.

    :param behind: so many others that run.
    :param at_once: so many are started together.
    """
    installation.shell(
        "from benchmarks.waiting_agent import start_one_by_one;"
        f" start_one_by_one({sessions}, behind={behind}, at_once={at_once})"
    )
    rows = installation.database.execute(
        "SELECT extract(epoch FROM call.started_at - session.created_at)::float * 1000"
        " FROM sessions_app_session session JOIN sessions_app_modelcall call USING (branch_id)"
        " WHERE session.phase = 'done' ORDER BY session.created_at DESC LIMIT %s",
        [sessions],
    ).fetchall()
    return [milliseconds for (milliseconds,) in rows]


def high(values: list[float]) -> float:
    """The 95th percentile."""
    return sorted(values)[min(len(values) - 1, int(len(values) * 0.95))]


def _middle(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]
