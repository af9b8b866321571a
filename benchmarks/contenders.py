"""Runs one contender once, on a database of its own, and returns what it reports."""

import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from benchmarks.children import ask
from benchmarks.rivals import environment
from tools.services import Postgres

PLAIN_STEPS = 1000
RIVAL_PACKAGES = ("langgraph", "dbos")


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
    with database(postgres) as url:
        report = ask_contender(contender, steps, url, "--operations")
    seconds = report["seconds"]
    return Run(
        median=statistics.median(seconds) * 1000,
        last_tenth=statistics.median(seconds[-max(1, len(seconds) // 10) :]) * 1000,
        cpu=report["cpu"],
        stored=report["bytes"],
        operations=report["milliseconds"],
    )


def plain_ms() -> float:
    """The milliseconds of CPU that a step of the plain agent takes now: how fast this machine is at present."""
    plain = next(contender for contender in CONTENDERS if contender.key == "bare")
    return run(plain, PLAIN_STEPS, None).cpu


def ask_contender(contender: Contender, steps: int, url: str, *options: str) -> Any:
    """What the contender reports, see `benchmarks.workload.Report`."""
    interpreter = str(environment.python()) if contender.rival else sys.executable
    if contender.rival:
        # As libraries other than Django expect it.
        url = url.replace("postgres://", "postgresql://", 1)
    module, *first = contender.module
    return ask(module, *first, "--url", url, "--steps", str(steps), *options, interpreter=interpreter)


@contextmanager
def database(postgres: Postgres | None) -> Iterator[str]:
    """The address of a new database: on the server, or SQLite without one."""
    if postgres is None:
        with tempfile.TemporaryDirectory(prefix="agentstate-bench-") as folder:
            yield f"sqlite:///{folder}/benchmark.sqlite3"
    else:
        yield postgres.new_database()


def rival_versions() -> dict[str, str]:
    code = "import sys; from importlib.metadata import version; print(*map(version, sys.argv[1:]))"
    command = [str(environment.python()), "-c", code, *RIVAL_PACKAGES]
    printed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.split()
    return dict(zip(RIVAL_PACKAGES, printed, strict=True))
