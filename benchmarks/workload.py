"""The work that every contender does in `benchmarks.steps`, and how it reports what that cost.

A step is one reply of a stub model that asks for one tool call with 100 bytes of arguments, a result of 1 KB, and 500
bytes of state that change. Needs only the standard library: the rivals' environment imports it too.
"""

import argparse
import json
import sqlite3
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TEXT = "The policy covers glass, storm and hail; the deductible is 450 EUR. " * 20


def arguments(number: int) -> dict[str, Any]:
    """About 100 bytes."""
    return {"number": number, "question": TEXT[:75]}


def result(number: int) -> str:
    return f"{number:08d} {TEXT}"[:1000]


def state(number: int) -> str:
    return f"{number:08d} {TEXT}"[:500]


# An operation is run so many times to be warm, and so many times to be timed; once each if it takes `LONG_SECONDS`.
WARM = 5
LONG_SECONDS = 0.1


def _milliseconds(run: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    run()
    return (time.perf_counter() - begun) * 1000


@dataclass
class Report:
    """What one contender measured.

    begun: the time at which the model was asked for the first, the second, ... step.
    cpu: seconds of this process, between the first and the last of them.
    stored: bytes of the database that the steps take, indexes included.
    milliseconds: of single operations on the session, by their name.
    counts: of what was sent to the database, where that was asked for.
    """

    begun: list[float] = field(default_factory=list)
    stored: int = 0
    milliseconds: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    _cpu: list[float] = field(default_factory=list)

    def step_begins(self) -> None:
        self.begun.append(time.perf_counter())
        self._cpu.append(time.process_time())

    def operation(self, name: str, run: Callable[[], Any]) -> Any:
        """Time it warm: the median of five runs after five that do not count; of a long operation, its second run.

        It is long if both of its first two runs are: one may import what it needs, or be held up by the garbage
        collector.
        """
        begun = time.perf_counter()
        value = run()
        first = (time.perf_counter() - begun) * 1000
        taken = _milliseconds(run)
        if min(first, taken) < LONG_SECONDS * 1000:
            for _ in range(WARM - 2):
                run()
            taken = statistics.median(_milliseconds(run) for _ in range(WARM))
        self.milliseconds[name] = taken
        return value

    def print(self) -> None:
        """As one line of JSON, the last that the process prints."""
        steps = len(self.begun) - 1
        seconds = [after - before for before, after in zip(self.begun, self.begun[1:], strict=False)]
        cpu = (self._cpu[-1] - self._cpu[0]) / steps * 1000
        print(
            json.dumps(
                {
                    "seconds": seconds,
                    "cpu": cpu,
                    "bytes": self.stored / steps,
                    "milliseconds": self.milliseconds,
                    "counts": self.counts,
                }
            )
        )


def options(description: str) -> argparse.Namespace:
    """``--url`` of the database, ``--steps``, ``--operations`` to time single operations too, and ``--count``."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--url", required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--operations", action="store_true")
    parser.add_argument("--count", action="store_true", help="count statements and commits, on SQLite")
    return parser.parse_args()


def sqlite_path(url: str) -> Path | None:
    return Path(url.removeprefix("sqlite:///")) if url.startswith("sqlite:") else None


def prepare(url: str) -> None:
    """Let a new SQLite file use a write-ahead log, as all contenders do; they all write with synchronous FULL."""
    path = sqlite_path(url)
    if path is not None:
        with sqlite3.connect(path) as connection:
            connection.execute("PRAGMA journal_mode=WAL")


def gather_statistics(url: str) -> None:
    """On PostgreSQL, as its autovacuum does within a minute: without them it plans for an empty table."""
    if sqlite_path(url) is None:
        import psycopg

        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("ANALYZE")


def stored(url: str) -> int:
    """The bytes that the whole database takes now."""
    path = sqlite_path(url)
    if path is not None:
        with sqlite3.connect(path) as connection:
            pages, free, size = (
                connection.execute(f"PRAGMA {name}").fetchone()[0]
                for name in ("page_count", "freelist_count", "page_size")
            )
        return int((pages - free) * size)
    import psycopg

    with psycopg.connect(url) as connection:
        row = connection.execute(
            "SELECT sum(pg_total_relation_size(c.oid)) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
            " WHERE c.relkind = 'r' AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast')"
        ).fetchone()
    return int(row[0] or 0) if row else 0
