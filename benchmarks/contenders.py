"""Runs one contender once, on a database of its own, and returns what it reports."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.rivals import environment
from tools.services import Postgres

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True, slots=True)
class Contender:
    """
    key: names it in tables of figures.
    module: the program, with its first arguments.
    most: the greatest number of steps that it is given.
    """

    key: str
    title: str
    module: tuple[str, ...]
    rival: bool = False
    most: int = 5000
    databases: tuple[str, ...] = ("SQLite", "PostgreSQL")


CONTENDERS = (
    Contender("floor", "floor: one row, one commit", ("benchmarks.steps", "floor")),
    Contender(
        "bare",
        "plain Haystack agent, nothing stored",
        ("benchmarks.steps", "bare"),
        databases=("SQLite",),
    ),
    Contender("agentstate", "**AgentState**", ("benchmarks.steps", "agentstate")),
    Contender(
        "delta-2",
        "LangGraph delta, model and tool as two nodes",
        ("benchmarks.rivals.langgraph_steps", "delta-2"),
        rival=True,
    ),
    Contender("dbos", "DBOS, a step per reply and per call", ("benchmarks.rivals.dbos_steps",), rival=True),
    Contender(
        "delta-1",
        "LangGraph delta, a step in one node",
        ("benchmarks.rivals.langgraph_steps", "delta-1"),
        rival=True,
    ),
    Contender(
        "messages",
        "LangGraph add_messages, its default",
        ("benchmarks.rivals.langgraph_steps", "messages"),
        rival=True,
        most=1000,  # At 5,000 it stores some 20 GB.
    ),
)


@dataclass(frozen=True, slots=True)
class Run:
    """One run. Times in milliseconds, bytes per step."""

    median: float
    last_tenth: float
    cpu: float
    stored: float
    operations: dict[str, float]


def run(contender: Contender, steps: int, postgres: Postgres | None) -> Run:
    """
    :raises subprocess.CalledProcessError: if the contender fails; its output has been shown.
    """
    interpreter = str(environment.python()) if contender.rival else sys.executable
    with _database(postgres, plain=contender.rival) as url:
        command = [interpreter, "-m", *contender.module, "--url", url, "--steps", str(steps), "--operations"]
        done = subprocess.run(
            command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, check=True
        )
    report = json.loads(done.stdout.splitlines()[-1])
    seconds = report["seconds"]
    return Run(
        median=statistics.median(seconds) * 1000,
        last_tenth=statistics.median(seconds[-max(1, len(seconds) // 10) :]) * 1000,
        cpu=report["cpu"],
        stored=report["bytes"],
        operations=report["milliseconds"],
    )


@contextmanager
def _database(postgres: Postgres | None, *, plain: bool) -> Iterator[str]:
    """
    :param plain: Let the address begin as libraries other than Django expect it.
    """
    if postgres is None:
        with tempfile.TemporaryDirectory(prefix="agentstate-bench-") as folder:
            yield f"sqlite:///{folder}/benchmark.sqlite3"
    else:
        url = postgres.new_database()
        yield url.replace("postgres://", "postgresql://", 1) if plain else url
