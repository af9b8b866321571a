"""A database that an earlier version has filled is taken over: nothing is lost, and every session can be carried on.

`tests/data/upgrade` holds such databases as SQL text, with a session in every condition, and what a reader has to see
of them; `tests/upgrade/make_dump.py` made them. Each is loaded into a fresh database, and `tests/upgrade/check.py`
takes it over in a process of its own.
"""

import sqlite3
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from tools.processes import PROJECT, environment

STORED = PROJECT / "tests" / "data" / "upgrade"
CHECK = (sys.executable, "-m", "tests.upgrade", str(STORED / "expected.json"))

pytestmark = pytest.mark.slow


def checked(database_url: str, *options: str) -> None:
    env = environment(DATABASE_URL=database_url, DJANGO_SETTINGS_MODULE="tests.settings")
    # Longer than anything takes, and shorter than the time limit of a test, which would hide what was printed.
    done = subprocess.run(
        (*CHECK, *options), cwd=PROJECT, env=env, capture_output=True, text=True, timeout=550
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-3000:]}"


@pytest.mark.long
def test_a_database_of_0_1_is_taken_over_on_sqlite(sqlite_url: str, tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "db.sqlite3")
    try:
        connection.executescript((STORED / "0.1.sqlite.sql").read_text())
    finally:
        connection.close()
    checked(sqlite_url)


@pytest.mark.long
def test_a_database_of_0_1_is_taken_over_on_postgresql(postgres_url: str) -> None:
    with psycopg.connect(postgres_url) as connection:
        connection.execute((STORED / "0.1.postgresql.sql").read_bytes())
    checked(postgres_url, "--all-tabs")
