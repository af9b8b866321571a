"""All benchmarks: the contenders interleaved, some rounds, then `benchmarks/RESULTS.md`; then the search.

python -m benchmarks [--steps 10 100 1000 5000] [--rounds 3] [--database SQLite PostgreSQL]
"""

import argparse
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack

from benchmarks import results
from benchmarks.contenders import CONTENDERS, Contender, Run, run
from benchmarks.rivals import environment
from tools.services import running_postgres

RIVAL_PACKAGES = ("langgraph", "dbos")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, nargs="+", default=[10, 100, 1000, 5000])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--database", nargs="+", default=["SQLite", "PostgreSQL"])
    parser.add_argument("--no-search", action="store_true", help="Leave the benchmark of the search out.")
    options = parser.parse_args()
    runs: dict[tuple[str, int, str], list[Run]] = {}
    with ExitStack() as stack:
        postgres = None
        if "PostgreSQL" in options.database:
            postgres = stack.enter_context(running_postgres(durable=True))
        for round_number, database, steps, contender in schedule(options):
            measured = run(contender, steps, postgres if database == "PostgreSQL" else None)
            runs.setdefault((database, steps, contender.key), []).append(measured)
            print(
                f"round {round_number}, {database}, {steps:>5} steps, {contender.key:<10} "
                f"{measured.median:7.2f} ms a step, {measured.cpu:5.2f} ms CPU, {measured.stored:6.0f} bytes",
                flush=True,
            )
    results.write(runs, options.rounds, rival_versions())
    if not options.no_search:
        for arguments in ([], ["--postgres"]):
            subprocess.run([sys.executable, "-m", "benchmarks.search", *arguments], check=True)


def schedule(options: argparse.Namespace) -> Iterator[tuple[int, str, int, Contender]]:
    """Round, database, number of steps and contender: the contenders interleaved, so that all meet the same machine."""
    for round_number in range(1, options.rounds + 1):
        for database in options.database:
            for steps in options.steps:
                for contender in CONTENDERS:
                    if steps <= contender.most and database in contender.databases:
                        yield round_number, database, steps, contender


def rival_versions() -> dict[str, str]:
    code = "import sys; from importlib.metadata import version; print(*map(version, sys.argv[1:]))"
    command = [str(environment.python()), "-c", code, *RIVAL_PACKAGES]
    printed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.split()
    return dict(zip(RIVAL_PACKAGES, printed, strict=True))


if __name__ == "__main__":
    main()
