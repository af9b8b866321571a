"""The server time of the desk's pages on a database of any size, beside the goal of each.

    python manage.py agent synth --sessions 100000 --steps 100000
    python -m benchmarks.pages [--rounds 20]

Works on the database of DATABASE_URL. Each page is requested as a supervisor, without a web server between: the times
hold view, queries and template. Prints the median and the 95th percentile of the rounds, warm, the CPU time of this
process and of its PostgreSQL backend in one round on average, which another program on the machine does not change
much, and the number of queries. The last line is a sweep with 200 lost sessions and 5,000 due ones, which it makes of
sessions at rest; each is rolled back, and its wake-ups are not sent.
"""

import argparse
import html
import os
import re
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from django.core.management import call_command

from benchmarks.steps import start_django

if TYPE_CHECKING:
    from django.test import Client
QUEUE, TAB, TICK, NEWS, SEARCH, ESTIMATE, SWEEP = 50, 80, 5, 50, 100, 200, 200
LOST, DUE = 200, 5_000

LISTS = (
    "/inbox/",
    "/inbox/?kind=approval",
    "/inbox/?kind=failed&agent=claims",
    "/?queue=running",
    "/?queue=waiting",
    "/?queue=paused",
    "/?queue=failed",
    "/?queue=done",
    "/?queue=all",
    "/?queue=all&agent=claims",
    "/agents/",
    "/workers/",
    "/views/",
    "/bulk/actions/",
)
SEARCHES = ("nothinglikethis", "Lindqvist", "policy", "the", "POL-8801")
TABS = (
    "",
    "?show=errors",
    "?show=tools",
    "?show=people",
    "?tool=look_up_policy",
    "?phase=planning",
    "conversation/",
    "state/",
    "memories/",
    "checkpoints/",
    "audit/",
    "find/?q=policy",
    "resume/",
    "rewind/",
    "fork/",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--only", default="", help="measure only pages whose name holds this")
    options = parser.parse_args()
    # All rounds in one backend of the server.
    os.environ |= {"AGENTSTATE_CONNECTIONS": "1", "HTTPS": "false"}
    with TemporaryDirectory(prefix="agentstate-static-") as static:
        os.environ["STATIC_ROOT"] = static
        start_django(os.environ["DATABASE_URL"])
        call_command("collectstatic", interactive=False, verbosity=0)
        report(options)


def report(options: argparse.Namespace) -> None:
    for name, goal, request in pages():
        if options.only not in name:
            continue
        measured = measure(request, options.rounds)
        high = statistics.quantiles(measured.milliseconds, n=20)[-1]
        verdict = "" if high <= goal else "  ABOVE"
        median = statistics.median(measured.milliseconds)
        print(
            f"{median:7.1f} {high:7.1f} of {goal:4d} ms, CPU {measured.cpu:6.1f} + {measured.server_cpu:6.1f} ms,"
            f" {measured.queries:3d} queries  {name}{verdict}",
            flush=True,
        )


@dataclass(frozen=True, slots=True)
class Measured:
    milliseconds: list[float]
    cpu: float
    server_cpu: float
    queries: int


def measure(request: Callable[[], object], rounds: int) -> Measured:
    """The rounds after two that do not count."""
    from django.db import connection
    from django.test.utils import CaptureQueriesContext

    request()
    with CaptureQueriesContext(connection) as captured:
        request()
    queries = len(captured)
    milliseconds = []
    cpu, server_cpu = time.process_time(), _server_cpu()
    for _ in range(rounds):
        begun = time.perf_counter()
        request()
        milliseconds.append((time.perf_counter() - begun) * 1000)
    cpu, server_cpu = time.process_time() - cpu, _server_cpu() - server_cpu
    return Measured(milliseconds, cpu / rounds * 1000, server_cpu / rounds * 1000, queries)


def _server_cpu() -> float:
    """Seconds of CPU of the PostgreSQL backend, if it runs on this machine."""
    from django.db import connection

    if connection.vendor != "postgresql":
        return 0.0
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        (pid,) = cursor.fetchone()
    stat = Path(f"/proc/{pid}/stat")
    fields = stat.read_text().rpartition(")")[2].split() if stat.exists() else ["0"] * 13
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def pages() -> Iterator[tuple[str, int, Callable[[], object]]]:
    """Name, goal and request of each page."""
    from django.contrib.auth.models import User
    from django.test import Client

    from sessions_app.access.roles import give_role
    from sessions_app.models import Role, Session

    user, _ = User.objects.get_or_create(username="benchmark")
    give_role(user, Role.SUPERVISOR)
    client = Client(HTTP_HOST="localhost")
    client.force_login(user)
    for address in LISTS:
        yield address, QUEUE, get(client, address)
    for words in SEARCHES:
        yield f"search: {words}", SEARCH, get(client, f"/?q={words}")
    longest = Session.objects.filter(status="paused").order_by("-position")
    for session in (longest[0], longest[len(longest) // 2]):
        for tab in TABS:
            yield f"{session.position} positions: {tab}", TAB, get(client, f"/sessions/{session.pk}/{tab}")
        page = client.get(f"/sessions/{session.pk}/").content.decode()
        (tick,) = set(re.findall(rf'"(/sessions/{session.pk}/live/\?[^"]*)"', page))
        tick = html.unescape(tick)
        news = tick.replace(f"after={session.change}", f"after={session.change - 1}")
        yield f"{session.position} positions: live, no news", TICK, get(client, tick)
        yield f"{session.position} positions: live, news", NEWS, get(client, news)
    for query in ("queue=done&kind=assign", "queue=paused", "queue=all&agent=claims"):
        yield f"bulk estimate: {query}", ESTIMATE, get(client, f"/bulk/?{query}")
    let_sessions_be_lost_and_due()
    yield f"sweep: {LOST} lost, {DUE} due", SWEEP, sweep


def get(client: "Client", address: str) -> Callable[[], object]:
    def request() -> object:
        response = client.get(address)
        assert response.status_code in (200, 204), f"{address}: {response.status_code}"
        return response.content

    return request


def sweep() -> None:
    """Rolled back: the next round finds the same."""
    from django.db import transaction
    from django.utils import timezone

    from sessions_app.runtime import recovery

    now = timezone.now()
    with transaction.atomic():
        recovery.sweep(now)
        transaction.set_rollback(True)


def let_sessions_be_lost_and_due() -> None:
    """So many sessions at rest lose a worker that never was, and so many are due."""
    from django.utils import timezone

    from sessions_app.models import Session, Status

    past = timezone.now() - timedelta(minutes=1)
    at_rest = Session.objects.filter(status=Status.IDLE).order_by("pk").values_list("pk", flat=True)
    keys = list(at_rest[: LOST + DUE])
    Session.objects.filter(pk__in=keys[:LOST]).update(
        status=Status.RUNNING, worker="gone", lease_expires_at=past
    )
    Session.objects.filter(pk__in=keys[LOST:]).update(status=Status.QUEUED, next_run_at=past)


if __name__ == "__main__":
    main()
