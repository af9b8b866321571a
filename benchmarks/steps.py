"""What a durable step costs, in time and bytes, as ratios measured side by side in one run.

    python -m benchmarks.steps [--steps 10 100 1000 5000] [--postgres]

Each step is one reply of a stub model, one tool call and about 1.9 KB of payload. Compared are
- bare: the plain Haystack agent, nothing stored;
- floor: one INSERT and COMMIT of the payload per step, through the same driver and durability settings;
- durable: the agent driven by `sessions_app.runtime.worker.drive` with its journal in the database.
"""

import argparse
import itertools
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PAYLOAD = ("The policy covers glass, storm and hail; the deductible is 450 EUR. " * 28)[:1900]


@dataclass
class Series:
    """Seconds of each step, and the bytes that all of them take."""

    name: str
    seconds: list[float] = field(default_factory=list)
    stored: int = 0

    def median(self) -> float:
        return statistics.median(self.seconds)

    def last_tenth(self) -> float:
        return statistics.median(self.seconds[-max(1, len(self.seconds) // 10) :])


class Stub:
    """Marks when each step begins; set again for each series."""

    steps = 0
    begun: list[float] = []


def build_agent() -> Any:
    from typing import Annotated

    from haystack import component
    from haystack.components.agents import Agent
    from haystack.dataclasses import ChatMessage, ToolCall
    from haystack.tools import tool

    @tool
    def look_up(number: Annotated[int, "which"]) -> str:
        """Looks something up."""
        return PAYLOAD

    @component
    class StubModel:
        """Answers at once, by the last message alone, so that the model costs the same at every step."""

        @component.output_types(replies=list[ChatMessage])
        def run(self, messages: list[ChatMessage], tools: Any = None, generation_kwargs: Any = None) -> Any:
            Stub.begun.append(time.perf_counter())
            results = messages[-1].tool_call_results
            number = results[0].origin.arguments["number"] + 1 if results else 0
            if number >= Stub.steps:
                return {"replies": [ChatMessage.from_assistant("Done.")]}
            call = ToolCall("look_up", {"number": number}, id=f"call{number}")
            return {"replies": [ChatMessage.from_assistant(tool_calls=[call])]}

        def to_dict(self) -> dict[str, Any]:
            return {"type": "benchmarks.steps.StubModel", "init_parameters": {}}

    return Agent(chat_generator=StubModel(), tools=[look_up], max_agent_steps=100_000)


def timed(name: str, steps: int) -> Series:
    marks = Stub.begun
    assert len(marks) == steps + 1, f"{name}: {len(marks)} model calls for {steps} steps"
    return Series(name, [after - before for before, after in itertools.pairwise(marks)])


def bare(steps: int) -> Series:
    from haystack.dataclasses import ChatMessage

    Stub.steps, Stub.begun = steps, []
    build_agent().run([ChatMessage.from_user("Go.")])
    return timed("bare", steps)


def floor(steps: int) -> Series:
    from django.db import connection

    with connection.cursor() as cursor:
        serial = "SERIAL" if connection.vendor == "postgresql" else "INTEGER"
        cursor.execute("DROP TABLE IF EXISTS bench_floor")
        cursor.execute(f"CREATE TABLE bench_floor (id {serial} PRIMARY KEY, step INTEGER, payload TEXT)")
    series = Series("floor")
    for step in range(steps):
        begun = time.perf_counter()
        with connection.cursor() as cursor:
            cursor.execute("INSERT INTO bench_floor (step, payload) VALUES (%s, %s)", [step, PAYLOAD])
        series.seconds.append(time.perf_counter() - begun)
    series.stored = size(["bench_floor"])
    with connection.cursor() as cursor:
        cursor.execute("DROP TABLE bench_floor")
    return series


def durable(steps: int) -> Series:
    from sessions_app import actions
    from sessions_app.access.roles import Actor
    from sessions_app.models import Session
    from sessions_app.runtime.worker import drive

    tables = [
        f"sessions_app_{name}" for name in ("message", "modelcall", "toolcall", "checkpoint", "statevalue")
    ]
    before = size(tables)
    session = actions.start(actor=Actor.system("benchmark"), agent="bench", message="Go.")
    Stub.steps, Stub.begun = steps, []
    assert drive(session.pk, worker="benchmark", slice_seconds=100_000) == "idle"
    series = timed("durable", steps)
    series.stored = size(tables) - before
    assert Session.objects.get(pk=session.pk).final_answer == "Done."
    return series


def size(tables: list[str]) -> int:
    """Bytes of the tables with their indexes."""
    from django.db import connection

    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute(
                "SELECT SUM(pg_total_relation_size(name::regclass)) FROM unnest(%s::text[]) AS name", [tables]
            )
            return int(cursor.fetchone()[0])
        cursor.execute("PRAGMA page_count")
        pages = cursor.fetchone()[0]
        cursor.execute("PRAGMA freelist_count")
        return int((pages - cursor.fetchone()[0]) * 4096)


def report(where: str, all_series: list[tuple[int, Series, Series, Series]]) -> None:
    print(f"\n{where}: median ms a step (last tenth), and bytes a step")
    print(
        f"{'steps':>6} {'bare':>7} {'floor':>7} {'durable':>16} {'of bare':>8} {'of floor':>9}"
        f" {'flat':>6} {'bytes':>7} {'of floor':>9}"
    )
    for steps, b, f, d in all_series:
        print(
            f"{steps:>6} {b.median() * 1e3:>7.2f} {f.median() * 1e3:>7.2f} "
            f"{d.median() * 1e3:>7.2f} ({d.last_tenth() * 1e3:>5.2f}) "
            f"{d.median() / b.median():>7.1f}x {d.median() / f.median():>8.1f}x {d.last_tenth() / d.median():>5.2f}x "
            f"{d.stored / steps:>7.0f} {d.stored / max(f.stored, 1):>8.2f}x"
        )


def measure(where: str, counts: list[int]) -> None:
    from django.core.management import call_command

    from agentstate.durable.registry import Registration, registry
    from sessions_app.models import RegisteredAgent

    call_command("migrate", verbosity=0)
    registry.add(Registration(key="bench", title="Benchmark", factory=build_agent))
    RegisteredAgent.objects.update_or_create(key="bench", defaults={"title": "Benchmark"})
    durable(5)  # warm up
    report(where, [(steps, bare(steps), floor(steps), durable(steps)) for steps in counts])


@contextmanager
def database(url: str) -> Iterator[None]:
    os.environ["DATABASE_URL"] = url
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "agentstate.settings")
    os.environ["AGENTSTATE_AGENTS"] = ""
    os.environ["AGENTSTATE_LEASE_SECONDS"] = "86400"
    import django

    django.setup()
    yield


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, nargs="+", default=[10, 100, 1000, 5000])
    parser.add_argument(
        "--postgres", action="store_true", help="On a throwaway PostgreSQL server instead of SQLite."
    )
    options = parser.parse_args()
    sys.setrecursionlimit(10_000)
    with ExitStack() as stack:
        if options.postgres:
            from tools.services import running_postgres

            url, where = stack.enter_context(running_postgres()).new_database(), "PostgreSQL"
        else:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            url, where = f"sqlite:///{Path(folder) / 'bench.sqlite3'}", "SQLite (WAL, synchronous FULL)"
        stack.enter_context(database(url))
        measure(where, options.steps)


if __name__ == "__main__":
    main()
