"""The server time of the desk's pages on a big synthetic database, beside the goal of each.

    python -m benchmarks.pages [--rounds 3] [--requests 20] [--only NAME]

The part fills a PostgreSQL of its own and runs this program on it, or on the database of FILLED_DATABASE_URL, filled so
before; the program alone works on the database of DATABASE_URL. Each page is requested as a supervisor, without a web
server between, in a process that has begun like one: the times hold view, queries and template. Prints the median and
the 95th percentile of the requests, warm, the CPU time of this process and of its PostgreSQL backend for one request on
average, which another program on the machine does not change much, the number of queries, and to how many sessions the
page has a link: an empty list tells nothing. The last line is a sweep with 200 lost sessions and 5,000 due ones, which
it makes of sessions at rest; each is rolled back, and its wake-ups are not sent.
"""

import argparse
import gc
import json
import os
import re
import statistics
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.children import ROOT, ask, say
from benchmarks.leases import backend_cpu
from benchmarks.page_list import ONE_STEP, pages
from benchmarks.rows import Measured, Row, Table, compared
from benchmarks.session_pages import LONGEST, TENTH
from benchmarks.sizes import Sizes
from benchmarks.steps import start_django
from tools.processes import MANAGE, environment
from tools.services import running_postgres

# The variable that names a database which is filled already. Its running and due sessions are changed.
FILLED = "FILLED_DATABASE_URL"
# So many times as long a page of a session may take where the session has ten times the steps.
SAME_GOAL = 1.25
_SESSION = re.compile(r"/sessions/([0-9a-f-]{36})/")


def measure(sizes: Sizes) -> Measured:
    """On a database of so many sessions; commits do not wait for the disk, since pages only read."""
    with _filled(sizes) as env:
        say("every page")
        options = ("--rounds", str(sizes.rounds), "--requests", str(sizes.requests))
        report = ask("benchmarks.pages", *options, env=env)
    tables = ", ".join(f"{number:,} {name}" for name, number in report["rows"].items())
    head = ("page", "p95 ms", "median ms", "CPU of Python, of PostgreSQL, ms", "queries", "sessions")
    lines = tuple(tuple(line) for line in report["lines"])
    rows = [Row(name, tuple(highs), "ms", goal) for name, goal, highs in report["highs"]]
    rows += _by_length(report["medians"])
    return Measured(rows, [Table(f"Pages on a database of {tables}", head, lines)], facts=report["rows"])


def _by_length(medians: dict[str, list[float]]) -> Iterator[Row]:
    """Of each page of a session, and of what its run goes on from, how much longer it takes in one ten times as long.

    By the medians of each round: the 95th percentile of twenty requests is the time of one of them.
    """
    for name, values in medians.items():
        session, _, page = name.partition(": ")
        others = medians.get(f"{TENTH}: {page}")
        # What a single step shows is another one in each session.
        if session == LONGEST and others and page != ONE_STEP:
            yield compared(f"{name}, median", values, others, "ms", rival=TENTH, goal=SAME_GOAL)


@contextmanager
def _filled(sizes: Sizes) -> Iterator[dict[str, str]]:
    """The environment of a process that works on the database."""
    if url := os.environ.get(FILLED):
        env = environment(DATABASE_URL=url, SECRET_KEY="only for benchmarks")
        _manage(env, ("migrate", "-v0"))
        _prepare(env)
        yield env
        return
    with running_postgres() as postgres:
        env = environment(DATABASE_URL=postgres.new_database(), SECRET_KEY="only for benchmarks")
        half = sizes.sessions // 2
        _manage(env, ("migrate", "-v0"))
        _manage(env, _synth(1, sizes.sessions - half, sizes.longest), _synth(2, half, 0))
        _manage(env, ("rebuild_search",))
        _prepare(env)
        yield env


def _prepare(env: dict[str, str]) -> None:
    say("what people leave on the desk")
    ask("benchmarks.desk_work", env=env)
    _vacuum(env["DATABASE_URL"])


def _vacuum(url: str) -> None:
    """As the server does by itself within minutes, once nothing else is written.

    Until then PostgreSQL looks rows up in the table whose values an index has, and prefers other plans. The sweeps of a
    run before, which are rolled back, leave hundreds of thousands of dead rows.
    """
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("VACUUM (ANALYZE)")


def _synth(seed: int, sessions: int, longest: int) -> tuple[str, ...]:
    """The long sessions are in one half only."""
    sizes = ("--sessions", str(sessions), "--steps", str(longest))
    return ("agent", "synth", "--add", "--seed", str(seed), *sizes)


def _manage(env: dict[str, str], *commands: tuple[str, ...]) -> None:
    """Run commands at the same time."""

    def manage(command: tuple[str, ...]) -> None:
        say(f"manage.py {' '.join(command)}")
        subprocess.run((*MANAGE, *command), cwd=ROOT, env=env, check=True, stdout=sys.stderr)

    with ThreadPoolExecutor(len(commands)) as threads:
        list(threads.map(manage, commands))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=20, help="of each page in each round")
    parser.add_argument("--only", default="", help="measure only pages whose name holds this")
    options = parser.parse_args()
    # All requests in one backend of the server.
    os.environ |= {"AGENTSTATE_CONNECTIONS": "1", "HTTPS": "false"}
    with TemporaryDirectory(prefix="agentstate-static-") as static:
        os.environ["STATIC_ROOT"] = static
        start_django(os.environ["DATABASE_URL"])
        from django.core.management import call_command

        from agentstate.preload import preload

        call_command("collectstatic", interactive=False, verbosity=0)
        preload()
        print(json.dumps(report(options)))


def report(options: argparse.Namespace) -> dict[str, Any]:
    from sessions_app import models

    highs: dict[str, tuple[str, int | None, list[float]]] = {}
    medians: dict[str, list[float]] = {}
    lines = {}
    every = [page for page in pages() if options.only in page[0]]
    for number in range(1, options.rounds + 1):
        for name, goal, request in every:
            times = time_requests(request, options.requests)
            high = statistics.quantiles(times.milliseconds, n=20, method="inclusive")[-1]
            median = statistics.median(times.milliseconds)
            highs.setdefault(name, (name, goal, []))[2].append(high)
            medians.setdefault(name, []).append(median)
            cpu = f"{times.cpu:.1f}, {times.server_cpu:.1f}"
            lines[name] = (name, f"{high:.1f}", f"{median:.1f}", cpu, str(times.queries), str(times.sessions))
            above = "  ABOVE" if goal is not None and high > goal else ""
            of_goal = f" of {goal}" if goal is not None else ""
            sys.stderr.write(
                f"round {number}: {high:7.1f} ms (median {median:.1f}, CPU {cpu}){of_goal}  {name}{above}\n"
            )
    counted = (models.Session, models.Message, models.ToolCall, models.Checkpoint, models.Approval)
    rows = {str(model._meta.verbose_name_plural): model.objects.count() for model in counted}
    return {
        "highs": list(highs.values()),
        "medians": medians,
        "lines": list(lines.values()),
        "rows": rows,
    }


@dataclass(frozen=True, slots=True)
class Times:
    """Milliseconds for one request, and how many queries it makes and to how many sessions its page has a link."""

    milliseconds: list[float]
    cpu: float
    server_cpu: float
    queries: int
    sessions: int


def time_requests(request: Callable[[], object], requests: int) -> Times:
    """Those after two that do not count."""
    from django.db import connection
    from django.test.utils import CaptureQueriesContext

    _forget_connected_signals()
    shown = request()
    with CaptureQueriesContext(connection) as captured:
        request()
    queries = len(captured)
    milliseconds = []
    cpu, server_cpu = time.process_time(), backend_cpu()
    for _ in range(requests):
        begun = time.perf_counter()
        request()
        milliseconds.append((time.perf_counter() - begun) * 1000)
    cpu, server_cpu = time.process_time() - cpu, backend_cpu() - server_cpu
    html = shown.decode() if isinstance(shown, bytes) else ""
    # What a page cannot read it leaves out: another page would be measured.
    assert "errorlist" not in html, html[html.index("errorlist") :][:200]
    sessions = len(set(_SESSION.findall(html)))
    return Times(milliseconds, cpu / requests * 1000, server_cpu / requests * 1000, queries, sessions)


def _forget_connected_signals() -> None:
    """Each request of the test client, unlike one of a server, connects signals, and Django keeps some objects for each
    connection for good: the garbage collector would take longer from page to page.
    """
    from django.dispatch import Signal

    of_signals = Signal._remove_receiver  # type: ignore[attr-defined]
    for finalizer in [each for each in gc.get_objects() if type(each) is weakref.finalize]:
        alive = finalizer.peek()
        if alive is not None and getattr(alive[1], "__func__", None) is of_signals:
            finalizer.detach()


if __name__ == "__main__":
    main()
