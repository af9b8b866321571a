"""All benchmarks: one part after the other, then `benchmarks/RESULTS.md`.

    python -m benchmarks [--only steps pages] [--leave-out search] [--resume] [--quick]
    python -m benchmarks --page     writes the page again from what was measured before

What was measured of a part is kept in `benchmarks/results/PART.json`, so parts can be measured at different times. An
option for a size takes precedence over `--quick`. See `benchmarks/sizes.py` for what each size means.
"""

import argparse
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from benchmarks import results, rows, store
from benchmarks.children import say
from benchmarks.contenders import plain_ms
from benchmarks.parts import PARTS
from benchmarks.sizes import SMALLEST, Sizes

TITLES = {key: part.title for key, part in PARTS.items()}
# Sizes with an option of their own: a number, or several.
_NUMBERS = [field.name for field in fields(Sizes) if field.type in (int, "int")]


def main(arguments: Sequence[str] | None = None) -> None:
    options = _options(arguments)
    sizes = _sizes(options)
    chosen = [] if options.page else _chosen(options, sizes)
    minutes = sum(PARTS[key].minutes(sizes) for key in chosen)
    if chosen:
        say(f"{', '.join(chosen)}: about {minutes:.0f} minutes on an idle machine of two cores")
    for number, key in enumerate(chosen, start=1):
        part = PARTS[key]
        say(f"{number} of {len(chosen)}: {part.title}, about {part.minutes(sizes):.0f} minutes")
        store.save(_measure(key, sizes, options.results), options.results)
        results.write(TITLES, options.results)
    results.write(TITLES, options.results)
    say(f"written: {options.results / 'RESULTS.md'}")


def _measure(key: str, sizes: Sizes, folder: Path) -> rows.Record:
    load, at, plain = os.getloadavg()[0], rows.now(), plain_ms()
    part, begun = PARTS[key], time.monotonic()
    measured = part.measure(sizes, *(store.read(needed, folder) for needed in part.needs))
    minutes = (time.monotonic() - begun) / 60
    return rows.Record(
        part=key,
        at=at,
        machine=rows.machine(),
        load=load,
        plain_ms=(plain, plain_ms()),
        minutes=minutes,
        sizes=asdict(sizes),
        versions={**rows.own_versions(), **measured.versions},
        measured=measured,
    )


def _chosen(options: argparse.Namespace, sizes: Sizes) -> list[str]:
    """The parts to measure. A name stands for all parts that begin with it: `steps` for those of both databases."""
    chosen = [
        key
        for key, part in PARTS.items()
        if (not options.only or key.startswith(tuple(options.only)))
        and not key.startswith(tuple(options.leave_out))
        and (not part.database or part.database in sizes.databases)
    ]
    if options.resume:
        chosen = [key for key in chosen if not _is_measured(key, sizes, options.results)]
    for key in chosen:
        for needed in PARTS[key].needs:
            if needed not in chosen and store.read(needed, options.results) is None:
                raise SystemExit(
                    f"{key} needs what {needed} measures: python -m benchmarks --only {needed} {key}"
                )
    return chosen


def _is_measured(key: str, sizes: Sizes, folder: Path) -> bool:
    """Whether the part was measured before with these sizes."""
    record = store.read(key, folder)
    return record is not None and record.sizes == _plain(asdict(sizes))


def _plain(value: Any) -> Any:
    """As it comes back from JSON."""
    if isinstance(value, dict):
        return {name: _plain(member) for name, member in value.items()}
    return [_plain(member) for member in value] if isinstance(value, tuple) else value


def _sizes(options: argparse.Namespace) -> Sizes:
    given = {name: value for name in _NUMBERS if (value := getattr(options, name)) is not None}
    if options.steps:
        given["steps"] = tuple(options.steps)
    if options.database:
        given["databases"] = tuple(options.database)
    if options.in_flight:
        given["in_flight"] = tuple(options.in_flight)
    if options.no_rivals:
        given["rivals"] = False
    return replace(SMALLEST if options.quick else Sizes(), **given)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=(__doc__ or "").splitlines()[0],
        epilog=f"Parts: {', '.join(PARTS)}.",
    )
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="PART", help="names of parts, or their beginnings"
    )
    parser.add_argument("--leave-out", nargs="+", default=[], metavar="PART")
    parser.add_argument(
        "--resume", action="store_true", help="leave out what was measured with these sizes before"
    )
    parser.add_argument("--page", action="store_true", help="measure nothing, write the page")
    parser.add_argument(
        "--quick", action="store_true", help="the smallest sizes: to see that every part runs"
    )
    parser.add_argument("--results", type=Path, default=store.HERE, help="the folder of the page")
    parser.add_argument("--no-rivals", action="store_true", help="leave the other engines out")
    parser.add_argument("--steps", type=_positive, nargs="+")
    parser.add_argument("--database", nargs="+", choices=["SQLite", "PostgreSQL"])
    parser.add_argument("--in-flight", type=_arrangement, nargs="+", metavar="PROCESSES:SESSIONS")
    for name in _NUMBERS:
        parser.add_argument(f"--{name.replace('_', '-')}", type=_positive)
    return parser.parse_args(arguments)


def _arrangement(text: str) -> tuple[int, int]:
    processes, sessions = text.split(":")
    return _positive(processes), _positive(sessions)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not positive")
    return number


if __name__ == "__main__":
    main()
