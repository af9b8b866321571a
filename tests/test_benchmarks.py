"""The benchmarks: what their page says of a goal, what they count, how they simulate, and that every part runs."""

import re
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import psycopg
import pytest
from django.urls import resolve

from benchmarks import page_list, parts, results, session_pages, store
from benchmarks.__main__ import main
from benchmarks.events import Process, Resource, Simulation
from benchmarks.rows import Chart, Measured, Record, Row, Table, compared
from benchmarks.simulation import Arrangement, Costs, Installation
from benchmarks.sizes import SMALLEST
from benchmarks.wire import counting
from sessions_app.desk.urls import urlpatterns
from tests import builders
from tools.processes import PROJECT

WITHOUT_RIVALS = ("--quick", "--no-rivals", "--results")


def record(part: str, *rows: Row, **measured) -> Record:
    sizes = asdict(replace(SMALLEST, rivals=False))
    return Record(
        part,
        "2026-11-22 08:00 UTC",
        "a machine",
        0.5,
        (0.4, 0.6),
        2.0,
        sizes,
        {"Python": "3"},
        Measured(rows, **measured),
    )


def test_the_page_has_a_row_for_each_figure_with_its_goal_its_ratio_and_whether_it_holds(tmp_path):
    store.save(
        record(
            "one",
            Row("a step", (3.0, 1.0, 2.0), "ms", 2.0),
            Row("a start", (9.0,), "s", 5.0),
            compared("a load", (4.0, 6.0), (8.0, 8.0), "ms", rival="DBOS", goal=0.6),
            Row("faster", (2.0,), "ms", 6.0, True, "LangGraph", (5.0,)),
            Row("shown", (1234.5,), "bytes"),
            tables=[Table("All", ("name", "ms"), (("a", "1"),))],
            charts=[Chart("one.svg", "A <chart>", "x", "y", {"a": [(10.0, 1.0), (100.0, 2.0)]})],
        ),
        tmp_path,
    )
    results.write({"one": "Part one", "two": "Part two"}, tmp_path)
    page = (tmp_path / "RESULTS.md").read_text()
    assert "Of 4 goals 1 holds as measured, and 2 as scaled.\n" in page
    assert "Not measured yet: Part two.\n" in page
    assert (
        "Measured at 2026-11-22 08:00 UTC, in 2.0 minutes, on a machine; at the beginning the load was 0.5."
        " A step of the plain agent took 0.40 ms of CPU before this part and 0.60 after it." in page
    )
    assert "| a step | 2 (1 to 3) ms | 1 ms |  | at most 2 ms | holds |" in page
    assert "| a start | 9 s | 4.5 s |  | at most 5 s | **does not hold** |" in page
    assert (
        "| a load | 5 (4 to 6) ms |  | 0.625 (0.5 to 0.75) of DBOS | at most 0.6 times | **does not hold** |"
        in page
    )
    assert "| faster | 2 ms |  | 5 of LangGraph | at least 6 times | **does not hold** |" in page
    assert "| shown | 1,234 bytes |  |  |  |  |" in page
    assert "![A <chart>](one.svg)" in page
    assert "| name | ms |\n|---|---|\n| a | 1 |" in page
    assert "<title>A &lt;chart&gt;</title>" in (tmp_path / "one.svg").read_text()


def test_a_part_that_was_measured_with_these_sizes_is_not_measured_again(tmp_path, capsys):
    for part in ("up", "writes"):
        store.save(record(part, Row(f"of {part}", (1.0,), "ms", 1.0)), tmp_path)
    main([*WITHOUT_RIVALS, str(tmp_path), "--resume", "--only", "up", "writes"])
    assert "1 of 1" not in capsys.readouterr().out
    assert "Of 2 goals 2 hold as measured, and 2 as scaled." in (tmp_path / "RESULTS.md").read_text()


def test_the_window_of_doubt_is_promised_for_what_was_measured_and_as_it_was_measured():
    rows = re.findall(
        r"^\| (\w+), (.+): commit of the reply to the call, (median|p95) \| ([\d.]+) .*",
        (PROJECT / "benchmarks" / "RESULTS.md").read_text(),
        re.MULTILINE,
    )
    measured = {(database, how, which): figure for database, how, which, figure in rows}
    promises = " ".join((PROJECT / "docs" / "promises.md").read_text().split())
    _, found, promised = promises.partition(
        "measured from the end of the commit to the first line of the tool."
    )
    promised = promised.partition(" - ")[0]
    assert found
    places = {(database, how) for database, how, _ in measured}
    figures = [f"{measured[*place, 'median']} ms ({measured[*place, 'p95']})" for place in places]
    assert [figure for figure in figures if figure not in promised] == []
    assert ("150 on SQLite are not measured" in promised) is (("SQLite", "150 in one process") not in places)


def test_a_part_that_needs_another_says_which(tmp_path):
    with pytest.raises(
        SystemExit, match="simulation needs what throughput measures: python -m benchmarks --only"
    ):
        main([*WITHOUT_RIVALS, str(tmp_path), "--only", "simulation"])


def test_the_proxy_counts_commits_statements_and_round_trips(postgres_url):
    with counting(postgres_url) as (url, counts):
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("CREATE TABLE mine (id int)")
            before = (counts.commits, counts.statements, counts.round_trips)
            connection.execute("INSERT INTO mine VALUES (1)")
            with connection.transaction():
                connection.execute("UPDATE mine SET id = 2")
                connection.execute("SELECT id FROM mine")
            with connection.transaction(force_rollback=True):
                connection.execute("DELETE FROM mine")
            connection.execute("WITH raised AS (UPDATE mine SET id = 3 RETURNING id) SELECT id FROM raised")
        after = (counts.commits, counts.statements, counts.round_trips)
    # The INSERT; BEGIN, UPDATE, SELECT, COMMIT; BEGIN, DELETE, ROLLBACK; the SELECT that writes.
    assert [b - a for a, b in zip(before, after, strict=True)] == [3, 5, 9]


def test_who_finds_a_resource_taken_waits_for_it_in_turn():
    simulation, desk = Simulation(), Resource(2)
    ends = []

    def visit(name: str) -> Process:
        yield from simulation.use(desk, 10.0)
        ends.append((name, simulation.now))

    for number, name in enumerate("abc"):
        simulation.begin(visit(name), float(number))
    simulation.run(100.0)
    assert ends == [("a", 10.0), ("b", 11.0), ("c", 20.0)]
    assert desk.busy_seconds == 30.0


COSTS = Costs(worker=0.01, database=0.005, commit_wait=0.002, lease_worker=0.0, lease_database=0.0)


def test_sessions_that_find_everything_idle_take_the_time_of_the_model_and_of_their_own_work():
    alone = Installation(Arrangement(1, 1, 1, 10.0, 4, lasts=200.0), COSTS).run()
    assert alone.steps == pytest.approx(0.1, rel=0.1)
    # 10 ms, 5 ms and two commits of 2 ms on average.
    assert sum(alone.stored) / len(alone.stored) == pytest.approx(0.019, rel=0.2)


def test_more_sessions_than_a_worker_can_compute_for_get_no_more_steps_than_its_cpu_allows():
    overloaded = Installation(Arrangement(400, 1, 10, 1.0, 64, lasts=40.0), COSTS).run()
    assert overloaded.steps == pytest.approx(100, rel=0.1)
    assert overloaded.workers == pytest.approx(1.0, rel=0.05)
    assert overloaded.percentile(0.5) > 2.0


@pytest.mark.slow
def test_more_sessions_than_postgresql_can_compute_for_are_limited_by_its_cores():
    overloaded = Installation(Arrangement(1000, 20, 3, 1.0, 1, lasts=20.0), COSTS).run()
    assert overloaded.steps == pytest.approx(200, rel=0.1)
    assert overloaded.database > 0.95


PARTS = [
    "steps-sqlite",
    pytest.param("steps-postgresql", marks=pytest.mark.long),
    pytest.param("writes", marks=pytest.mark.long),
    pytest.param("window", marks=pytest.mark.long),
    pytest.param("start", marks=pytest.mark.long),
    pytest.param("pages", marks=pytest.mark.long),
    pytest.param("search", marks=pytest.mark.long),
    pytest.param("live", marks=pytest.mark.long),
    pytest.param("up", marks=pytest.mark.long),
]


@pytest.mark.slow
@pytest.mark.usefixtures("postgres_server", "redis_server")
@pytest.mark.parametrize("part", PARTS)
def test_the_part_runs_at_its_smallest_size(part, tmp_path: Path):
    main([*WITHOUT_RIVALS, str(tmp_path), "--only", part])
    stored = store.read(part, tmp_path)
    assert stored is not None
    assert all(value > 0 for row in stored.measured.rows for value in row.rounds)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.usefixtures("postgres_server", "redis_server")
def test_the_simulation_takes_its_costs_from_what_the_parts_before_it_measured(tmp_path):
    sizes = ("--in-flight", "1:3")
    main([*WITHOUT_RIVALS, str(tmp_path), *sizes, "--only", "throughput", "leases", "slices", "simulation"])
    stored = store.read("simulation", tmp_path)
    assert stored is not None
    costs = stored.measured.facts["costs"]
    assert all(cost > 0 for cost in costs.values())
    assert [row.figure.rpartition(": ")[2] for row in stored.measured.rows] == [
        "replies a second, simulated",
        "a step, simulated",
    ] * 3  # in one process, twice as many in two, and with a slow model
    assert all(value > 0 for row in stored.measured.rows for value in row.ratios)


def test_the_page_of_results_is_that_of_the_records_beside_it(tmp_path: Path):
    for record in (store.HERE / "results").glob("*.json"):
        (tmp_path / "results").mkdir(exist_ok=True)
        shutil.copy(record, tmp_path / "results")
    titles = {name: part.title for name, part in parts.PARTS.items()}
    results.write(titles, tmp_path)
    for written in (*tmp_path.glob("*.md"), *tmp_path.glob("*.svg")):
        assert written.read_text() == (store.HERE / written.name).read_text(), written.name


@pytest.mark.django_db
def test_each_page_of_the_desk_is_measured_or_it_is_said_why_not():
    session = builders.rewound(status="paused")
    addresses = [
        *page_list.LISTS,
        *page_list.each_choice(),
        page_list.NUMBERS,
        "/bulk/?queue=all",
        "/bulk/actions/1/",
    ]
    for kind in (session_pages.tabs, session_pages.forms, session_pages.of_rows):
        addresses += [address for _, address in kind(session)]
    measured = {resolve(address.partition("?")[0]).url_name for address in addresses}
    # What an open page asks is found in the page.
    measured.add("live")
    assert measured.isdisjoint(session_pages.NOT_MEASURED)
    assert {pattern.name for pattern in urlpatterns} == measured | session_pages.NOT_MEASURED.keys()
