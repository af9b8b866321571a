"""Writes `benchmarks/RESULTS.md` and its charts from what was measured of each part, whenever that was."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks import store
from benchmarks.plot import line_chart
from benchmarks.rows import PLAIN_MS, Record, Row, Table

INTRODUCTION = """\
# Results of the benchmarks

Written by `make bench`, or by `python -m benchmarks --only PART` for one part. Each row has the median of the rounds,
with the lowest and the highest round behind it. Where a rival is named, the goal is one of the ratio to it, round by
round; the contenders of a round run one after the other, on new databases. A row without a goal is only shown. One step
is one reply of a stub model that asks for one tool call with 100 bytes of arguments, a result of 1 KB and 500 bytes of
state that change. SQLite has a write-ahead log and synchronous FULL. LangGraph and DBOS call a plain function where
AgentState runs Haystack's whole agent loop.

The goals in milliseconds, seconds and cores were set on a machine on which a step of the plain Haystack agent, which
stores nothing, takes {plain} ms of CPU. Each part says what it took here. The column *scaled* has the figure as it
would be on that machine if all of it were CPU, and is an indication only: the verdict is on what was measured.
"""


def write(titles: Mapping[str, str], folder: Path = store.HERE) -> None:
    """
    :param titles: of all parts, in the order of the page.
    """
    records = store.read_all(titles, folder)
    rows = [
        (row, statistics.mean(record.plain_ms))
        for record in records
        for row in record.measured.rows
        if row.goal is not None
    ]
    holding = sum(bool(row.holds) for row, _ in rows)
    as_scaled = sum(bool(row.holds_as_scaled(plain_ms)) for row, plain_ms in rows)
    text = [
        INTRODUCTION.format(plain=PLAIN_MS),
        f"Of {len(rows)} goals {holding} hold{'s' if holding == 1 else ''} as measured, and {as_scaled} as scaled.\n",
    ]
    missing = [title for part, title in titles.items() if part not in {record.part for record in records}]
    if missing:
        text.append(f"Not measured yet: {'; '.join(missing)}.\n")
    for record in records:
        text += _part(record, titles[record.part], folder)
    (folder / "RESULTS.md").write_text("\n".join(text).rstrip() + "\n")


def _part(record: Record, title: str, folder: Path) -> Iterator[str]:
    yield f"## {title}\n"
    versions = ", ".join(f"{name} {number}" for name, number in record.versions.items())
    yield (
        f"Measured at {record.at}, in {record.minutes:.1f} minutes, on {record.machine}; at the beginning the load was"
        f" {record.load:.1f}. A step of the plain agent took {record.plain_ms[0]:.2f} ms of CPU before this part and"
        f" {record.plain_ms[1]:.2f} after it. {versions}. `python -m benchmarks --only {record.part}`, with"
        f" {', '.join(f'{name} {_said(value)}' for name, value in record.sizes.items())}.\n"
    )
    yield "| figure | measured | scaled | ratio | goal | |"
    yield "|---|---|---|---|---|---|"
    for row in record.measured.rows:
        yield _row(row, statistics.mean(record.plain_ms))
    yield ""
    for chart in record.measured.charts:
        (folder / chart.file).write_text(line_chart(chart.title, chart.x, chart.y, chart.lines))
        yield f"![{chart.title}]({chart.file})\n"
    for table in record.measured.tables:
        yield from _table(table)


def _row(row: Row, plain_ms: float) -> str:
    ratio = f"{spread(row.ratios)} of {row.rival}" if row.rival else ""
    goal = ""
    if row.goal is not None:
        of = "times" if row.rival else row.unit
        goal = f"at {'least' if row.at_least else 'most'} {_number(row.goal)} {of}".rstrip()
    verdict = {None: "", True: "holds", False: "**does not hold**"}[row.holds]
    scaled = row.scaled(plain_ms)
    shown = "" if scaled is None else f"{_number(scaled)} {row.unit}"
    return f"| {row.figure} | {spread(row.rounds)} {row.unit} | {shown} | {ratio} | {goal} | {verdict} |"


def _table(table: Table) -> Iterator[str]:
    yield f"### {table.title}\n"
    yield f"| {' | '.join(table.head)} |"
    yield "|" + "---|" * len(table.head)
    for row in table.rows:
        yield f"| {' | '.join(row)} |"
    yield ""


def spread(rounds: Sequence[float]) -> str:
    """The median, and behind it the range of several rounds."""
    middle = _number(statistics.median(rounds))
    return middle if len(rounds) == 1 else f"{middle} ({_number(min(rounds))} to {_number(max(rounds))})"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _said(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return ", ".join(
            ":".join(map(str, each)) if isinstance(each, (list, tuple)) else _said(each) for each in value
        )
    return f"{value:,}" if isinstance(value, int) else str(value)
