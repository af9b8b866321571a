"""What a step takes in the database, in pages with those of its indexes: an index or a column that is added to what
every step writes shows here.

The steps are those of the benchmark: 100 bytes of arguments, a result of 1 KB, 500 bytes of state that change.
"""

import psycopg
import pytest

from benchmarks.children import ask
from tests.databases import NewDatabases

# So many that an index of small numbers takes more pages than one.
STEPS = 2_000
GOAL = 4_600


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind, page_size, pages",
    [("sqlite", 4_096, 1_452), ("postgres", 8_192, 1_046)],
    ids=["sqlite", "postgres"],
)
def test_a_step_takes_so_much_of_the_database(
    new_database: NewDatabases, kind: str, page_size: int, pages: int
) -> None:
    url = new_database(kind)
    if kind == "postgres":
        _turn_off_vacuum(url)
    stored = ask("benchmarks.steps", "agentstate", "--url", url, "--steps", str(STEPS))["bytes"]
    # How often the time of the session's last change is written depends on how fast the steps are.
    assert round(stored * STEPS / page_size) == pytest.approx(pages, abs=1), f"{stored} bytes a step"
    assert stored <= GOAL


def _turn_off_vacuum(url: str) -> None:
    """It would add pages of its own, if it came to these tables meanwhile."""
    with psycopg.connect(url) as connection:
        tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
        for (table,) in tables:
            connection.execute(f'ALTER TABLE "{table}" SET (autovacuum_enabled = off)'.encode())
