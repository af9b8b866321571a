"""What a step takes in the database, in pages with those of its indexes: a value or an index entry that every step adds
shows here.

The steps are those of the benchmark: 100 bytes of arguments, a result of 1 KB, 500 bytes of state that change.
"""

from typing import Any

import pytest
from django.db import connection

from benchmarks.children import ask
from tests import builders
from tests.databases import NewDatabases, connected

# So many that an index of small numbers takes more pages than one.
STEPS = 2_000
PAGE, POSTGRES_PAGE = 4_096, 8_192


@pytest.mark.slow
def test_a_step_takes_so_much_of_the_database(new_database: NewDatabases) -> None:
    url = new_database("sqlite")
    stored = ask("benchmarks.steps", "agentstate", "--url", url, "--steps", str(STEPS))["bytes"]
    # How often the time of the session's last change is written depends on how fast the steps are.
    assert round(stored * STEPS / PAGE) == pytest.approx(1_452, abs=1), f"{stored} bytes a step"


@pytest.mark.long
@pytest.mark.slow
def test_a_step_takes_so_much_of_postgresql(new_database: NewDatabases) -> None:
    stored = ask("benchmarks.steps", "agentstate", "--url", new_database("postgres"), "--steps", "1000")[
        "bytes"
    ]
    # Where an autovacuum comes before the end, fewer.
    assert 440 <= round(stored * 1_000 / POSTGRES_PAGE) <= 540, f"{stored} bytes a step"


@pytest.mark.slow
def test_on_postgresql_a_row_of_any_length_stays_in_its_pages_however_often_it_is_updated(
    migrated_postgres_url: str, django_db_blocker: Any
) -> None:
    """In another page it would take an entry in each index of the sessions, and leave the old one empty (0045)."""
    moved = {}
    with django_db_blocker.unblock(), connected(migrated_postgres_url):
        for length in range(0, 1_000, 40):
            session = builders.paused()
            pages = []
            # As the steps of a session change it: a phase, a time or a total is some bytes longer than the last one.
            for version in range(60):
                with connection.cursor() as cursor:
                    cursor.execute(
                        "UPDATE sessions_app_session SET why = %s WHERE id = %s RETURNING (ctid::text::point)[0]",
                        ["x" * (length + 8 * (version % 7)), session.pk],
                    )
                    pages.append(cursor.fetchone()[0])
            moved[length] = len(set(pages))
    # While an autovacuum reads its statistics, PostgreSQL removes no earlier versions of the row.
    assert sum(pages > 2 for pages in moved.values()) <= 1, moved
