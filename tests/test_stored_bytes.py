"""What a step takes in the database, in pages with those of its indexes: a value or an index entry that every step adds
shows here.

The steps are those of the benchmark: 100 bytes of arguments, a result of 1 KB, 500 bytes of state that change. On
PostgreSQL the pages depend on what else its server does, so that only the benchmark counts them.
"""

import pytest

from benchmarks.children import ask
from tests.databases import NewDatabases

# So many that an index of small numbers takes more pages than one.
STEPS = 2_000
PAGE = 4_096


@pytest.mark.slow
def test_a_step_takes_so_much_of_the_database(new_database: NewDatabases) -> None:
    url = new_database("sqlite")
    stored = ask("benchmarks.steps", "agentstate", "--url", url, "--steps", str(STEPS))["bytes"]
    # How often the time of the session's last change is written depends on how fast the steps are.
    assert round(stored * STEPS / PAGE) == pytest.approx(1_452, abs=1), f"{stored} bytes a step"
