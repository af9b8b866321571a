"""The database file is its owner's alone, whichever process makes or opens it."""

import os
import sqlite3
import stat
from contextlib import closing

import pytest
from django.db import connection, connections
from django.db.utils import ConnectionHandler

from agentstate.sqlite.base import DatabaseWrapper
from agentstate.sqlite_file import OwnersConnection
from tools.processes import MANAGE, environment, run

# What a worker does first, in a process of its own.
SWEEP = (
    MANAGE[0],
    "-c",
    "import django, agentstate.celery; django.setup(); from sessions_app.tasks import sweep; sweep()",
)


@pytest.fixture
def file(tmp_path):
    """The path of a file that does not exist yet, under the umask that lets everybody read."""
    before = os.umask(0o022)
    yield tmp_path / "db.sqlite3"
    os.umask(before)


def modes(file):
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in file.parent.glob(f"{file.name}*")}


def test_a_new_file_and_its_companions_are_the_owners_alone(file):
    with closing(sqlite3.connect(file, factory=OwnersConnection)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("CREATE TABLE t (n)")
        assert modes(file) == dict.fromkeys(("db.sqlite3", "db.sqlite3-wal", "db.sqlite3-shm"), 384)


def test_files_of_an_earlier_version_are_taken_from_the_others(file):
    with closing(sqlite3.connect(file)) as old:
        old.execute("PRAGMA journal_mode=WAL")
        old.execute("CREATE TABLE t (n)")
        assert set(modes(file).values()) == {0o644}
        assert len(modes(file)) == 3
        with closing(sqlite3.connect(file, factory=OwnersConnection)) as connection:
            assert connection.execute("SELECT count(*) FROM t").fetchone() == (0,)
            assert set(modes(file).values()) == {0o600}


@pytest.mark.parametrize("name", [":memory:", "file:some?mode=memory"])
def test_what_is_in_memory_makes_no_file(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with closing(sqlite3.connect(name, uri=True, factory=OwnersConnection)) as connection:
        connection.execute("CREATE TABLE t (n)")
    assert not list(tmp_path.iterdir())


def test_a_file_that_cannot_be_made_is_an_error_of_sqlites(tmp_path):
    with pytest.raises(sqlite3.OperationalError, match="unable to open"):
        sqlite3.connect(tmp_path / "missing" / "db.sqlite3", factory=OwnersConnection)


@pytest.mark.slow
def test_migrate_makes_it_so_and_a_worker_keeps_it_so(file):
    env = environment(
        DATABASE_URL=f"sqlite:///{file}", SECRET_KEY="for these tests", AGENTSTATE_AGENTS="agentstate"
    )
    done = run((*MANAGE, "migrate", "--verbosity=0"), env)
    assert done.returncode == 0, done.stderr
    assert set(modes(file).values()) == {0o600}
    file.chmod(0o644)
    done = run(SWEEP, env)
    assert done.returncode == 0, done.stderr
    assert set(modes(file).values()) == {0o600}


def test_the_engine_reads_placeholders_and_percent_signs_as_djangos_does(tmp_path, django_db_blocker):
    """The engine alone, whichever database the other tests use."""
    database = {"ENGINE": "agentstate.sqlite", "NAME": tmp_path / "db.sqlite3"}
    connection = ConnectionHandler({"default": database})["default"]
    with django_db_blocker.unblock(), closing(connection), connection.cursor() as cursor:
        for number in (1, 2):
            cursor.execute("SELECT %s, '100 %% of %%s', %s", [number, "%s"])
            assert cursor.fetchall() == [(number, "100 % of %s", "%s")]
        cursor.execute("SELECT %(a)s, %(b)s", {"a": 3, "b": "4"})
        assert cursor.fetchall() == [(3, "4")]
        cursor.execute("SELECT '100 % of %s'")
        assert cursor.fetchall() == [("100 % of %s",)]
        cursor.execute("CREATE TABLE team (name)")
        cursor.executemany("INSERT INTO team (name) VALUES (%s)", [["a"], ["b"]])
        cursor.execute("SELECT name FROM team WHERE name IN ('a', 'b') ORDER BY name")
        assert cursor.fetchall() == [("a",), ("b",)]


@pytest.mark.django_db
def test_every_sqlite_database_of_a_desk_uses_the_engine():
    assert isinstance(connections["default"], DatabaseWrapper) == (connection.vendor == "sqlite")
