"""The commits, statements and round trips of one step, counted: on PostgreSQL on the wire, on SQLite in the process.

Each contender runs S and 2 S steps; what the longer run has more is that of S steps, so starting up does not count.
"""

from benchmarks.children import say
from benchmarks.contenders import CONTENDERS, Contender, ask_contender, database
from benchmarks.rows import Measured, Row, Table
from benchmarks.sizes import Sizes
from benchmarks.wire import counting
from tools.services import running_postgres

STEPS = 50
# Of the step of a reply and a call, for an agent without hooks: the reply with the started call, and the result.
COMMITS_GOAL = 2
ROUND_TRIPS_GOAL = 2
NAMES = {"commits": "commits", "statements": "statements", "round_trips": "round trips"}
_GOALS = {"commits": COMMITS_GOAL, "round_trips": ROUND_TRIPS_GOAL}
OWN = next(contender for contender in CONTENDERS if contender.key == "agentstate")

Counts = dict[str, float]


def measure(sizes: Sizes) -> Measured:
    steps = min(STEPS, max(sizes.steps))
    rows: list[Row] = []
    lines: list[tuple[str, ...]] = []
    if "SQLite" in sizes.databases:
        with database(None) as url:
            few, many = (_in_process(number, url) for number in (steps, 2 * steps))
        rows += _rows("SQLite", _difference(few, many, steps))
    if "PostgreSQL" in sizes.databases:
        with running_postgres() as postgres:
            for contender in (
                OWN,
                *(contender for contender in CONTENDERS if contender.rival and sizes.rivals),
            ):
                url = postgres.new_database()
                if contender is OWN:
                    # Makes the tables, which takes many statements, and longer through the proxy.
                    ask_contender(OWN, 1, url)
                few, many = (
                    _on_the_wire(contender, number, postgres.new_database() if contender.rival else url)
                    for number in (steps, 2 * steps)
                )
                counts = _difference(few, many, steps)
                say(f"PostgreSQL, {contender.key}: {counts}")
                if contender is OWN:
                    rows += _rows("PostgreSQL", counts)
                lines.append((contender.title, *(f"{counts[name]:.3g}" for name in NAMES)))
    table = Table("A step on PostgreSQL, counted on the wire", ("contender", *NAMES.values()), tuple(lines))
    facts = {row.figure: row.rounds[0] for row in rows}
    return Measured(rows, [table] if lines else [], facts=facts)


def _rows(where: str, counts: Counts) -> list[Row]:
    return [
        Row(f"{where}: {NAMES[name]} of a step", (value,), "", _GOALS.get(name))
        for name, value in counts.items()
    ]


def _in_process(steps: int, url: str) -> Counts:
    counts: Counts = ask_contender(OWN, steps, url, "--count")["counts"]
    return counts


def _on_the_wire(contender: Contender, steps: int, url: str) -> Counts:
    with counting(url) as (proxied, counts):
        ask_contender(contender, steps, proxied)
    return {name: getattr(counts, name) for name in NAMES}


def _difference(few: Counts, many: Counts, steps: int) -> Counts:
    return {name: (many[name] - few[name]) / steps for name in few}
