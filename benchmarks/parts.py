"""The parts of the benchmarks, in the order of the page, each with an estimate of how long it takes."""

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks import (
    cold_start,
    durable_step,
    first_request,
    leases,
    live,
    pages,
    search,
    simulation,
    slices,
    throughput,
    window,
    writes,
)
from benchmarks.rows import Measured
from benchmarks.sizes import Sizes


@dataclass(frozen=True, slots=True)
class Part:
    """
    measure: returns what was measured; it is given the sizes, and the records of the parts that it needs.
    minutes: about so many, on an idle machine of two cores.
    database: where it is measured, if a choice of databases leaves it out.
    needs: parts that must have been measured before.
    """

    title: str
    measure: Callable[..., Measured]
    minutes: Callable[[Sizes], float]
    database: str = ""
    needs: tuple[str, ...] = ()


def _of_steps(sizes: Sizes) -> float:
    """Of all contenders: 4 s to start each and 4 ms a step; LangGraph's default takes 20 ms a step with 1,000."""
    contenders = 7 if sizes.rivals else 3
    seconds = sum(contenders * (4 + 0.004 * steps) + (20 if steps == 1000 else 0) for steps in sizes.steps)
    return sizes.rounds * seconds / 60


def _of_throughput(sizes: Sizes) -> float:
    """Of each arrangement: 30 s to start, one session alone, and at least 8 ms of CPU for a reply of all others."""
    _, first = sizes.in_flight[0]
    sessions = [
        *((count, 0.32) for _, count in sizes.in_flight),
        (2 * first, 0.32),
        (first, 0.32),
        (sizes.in_flight[-1][1], 1.52),
    ]
    seconds = sum(30 + sizes.replies * (model + max(model, count * 0.008)) for count, model in sessions)
    return sizes.rounds * seconds / 60


def _of_pages(sizes: Sizes) -> float:
    """Of each session 1 ms to insert and 0.5 ms to index it; five steps of the longest count as one."""
    sessions = sizes.sessions + sizes.longest / 5
    seconds = 60 + sessions * 1.5e-3 + sizes.rounds * 80 * (sizes.requests + 2) * 0.2
    return seconds / 60


PARTS = {
    "steps-sqlite": Part("A durable step on SQLite", durable_step.on_sqlite, _of_steps, "SQLite"),
    "steps-postgresql": Part(
        "A durable step on PostgreSQL", durable_step.on_postgresql, _of_steps, "PostgreSQL"
    ),
    "writes": Part("What a step sends to the database", writes.measure, lambda sizes: 2),
    "window": Part(
        "From the commit of a reply to its call", window.measure, lambda sizes: sizes.rounds * 0.8
    ),
    "throughput": Part("Sessions in flight", throughput.measure, _of_throughput, "PostgreSQL"),
    "leases": Part("Heartbeats", leases.measure, lambda sizes: sizes.rounds * 0.3, "PostgreSQL"),
    "slices": Part("Giving way", slices.measure, lambda sizes: sizes.rounds * 0.3, "PostgreSQL"),
    "start": Part(
        "Start to the model being asked",
        first_request.measure,
        lambda sizes: sizes.rounds * (30 + 1.4 * sizes.starts) / 60,
        "PostgreSQL",
    ),
    "pages": Part("Pages", pages.measure, _of_pages, "PostgreSQL"),
    "search": Part("Search among many messages", search.measure, lambda sizes: 3),
    "live": Part(
        "Open pages",
        live.measure,
        lambda sizes: sizes.rounds * (100 + sizes.open_pages * 2 / sizes.running + 2 * sizes.seconds) / 60,
        "PostgreSQL",
    ),
    "up": Part("Cold start", cold_start.measure, lambda sizes: sizes.rounds * 0.3),
    "simulation": Part(
        "Simulation of many sessions",
        simulation.measure,
        lambda sizes: 0.5 + sizes.simulated / 20_000,
        needs=("throughput", "leases", "slices"),
    ),
}
