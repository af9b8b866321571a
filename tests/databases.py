"""Databases other than that of the test suite, and all that one holds."""

import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any

import dj_database_url
from django.apps import apps
from django.conf import settings
from django.contrib.contenttypes.models import ContentType
from django.db import connection, connections
from django.db.utils import load_backend

from agentstate.postgresql import pool as pools
from agentstate.postgresql.limits import lock_limits
from sessions_app.models import Session
from tools.processes import MANAGE, environment, run
from tools.services import Postgres


class NewDatabases:
    """Makes databases with all tables and no rows of tests. Migrating takes seconds: it is done once, and copied.

    :param folder: Where the files of SQLite lie.
    :param migrated: A migrated file of SQLite, if it is there.
    :param postgres: Gives the server, which is not started for tests that need none.
    """

    def __init__(self, folder: Path, migrated: Path | None, postgres: Callable[[], Postgres]) -> None:
        self._folder = folder
        self._migrated = migrated
        self._postgres = postgres
        self._numbers = count(1)

    def __call__(self, kind: str) -> str:
        """The DATABASE_URL of another one; on "sqlite" or "postgres"."""
        if kind == "postgres":
            return self._postgres().new_database(self._postgres_template)
        path = self._folder / f"{next(self._numbers)}.sqlite3"
        shutil.copyfile(self._sqlite_template, path)
        with closing(sqlite3.connect(path)) as connection:
            # As the settings of the project have it; a process that reads does not wait for one that writes.
            connection.execute("PRAGMA journal_mode=WAL")
        return f"sqlite:///{path}"

    @cached_property
    def _sqlite_template(self) -> Path:
        if self._migrated is not None and self._migrated.exists():
            return self._migrated
        path = self._folder / "template.sqlite3"
        _migrate(f"sqlite:///{path}")
        return path

    @cached_property
    def _postgres_template(self) -> str:
        url = self._postgres().new_database()
        _migrate(url)
        return url


def _migrate(url: str) -> None:
    migrated = run((*MANAGE, "migrate", "-v0"), environment(DATABASE_URL=url, SECRET_KEY="x"))
    assert migrated.returncode == 0, migrated.stderr


@contextmanager
def connected(url: str, pool: int = 0) -> Iterator[None]:
    """Let this thread work on the database at `url` instead of the test suite's, with so many connections in a pool."""
    parsed: dict[str, Any] = {**dj_database_url.parse(url)}
    if url.startswith("sqlite"):
        parsed["ENGINE"] = "agentstate.sqlite"
        parsed["OPTIONS"] = {"transaction_mode": "IMMEDIATE", "timeout": 20}
    else:
        parsed["ENGINE"] = "agentstate.postgresql"
        limits = lock_limits(settings.AGENTSTATE_LEASE_SECONDS)
        parsed["OPTIONS"] = {**parsed.get("OPTIONS", {}), "options": limits, "connections": pool}
    config = connections.configure_settings({"default": parsed})["default"]
    usual = connections["default"]
    connections["default"] = load_backend(config["ENGINE"]).DatabaseWrapper(config, "default")
    ContentType.objects.clear_cache()
    try:
        yield
    finally:
        connections["default"].close()
        connections["default"] = usual
        ContentType.objects.clear_cache()


@contextmanager
def own_pools() -> Iterator[None]:
    """No pool is there at the beginning; at the end none of those made meanwhile is open."""
    others = dict(pools._pools)
    pools._pools.clear()
    try:
        yield
    finally:
        pools._close_pools()
        pools._pools.update(others)


def only_pool() -> pools.Pool:
    (only,) = pools._pools.values()
    return only


@contextmanager
def refusing_after(seconds: float) -> Iterator[None]:
    """Whoever finds no connection free in the only pool is refused after so long. What has to be opened takes longer on
    a busy machine: it is opened before.
    """
    pool = only_pool()
    usual, pool.timeout = pool.timeout, seconds
    try:
        yield
    finally:
        pool.timeout = usual


def in_use() -> int:
    """Connections of the only pool that somebody holds, or that nobody has noticed to be left behind."""
    only_pool().replace_left()
    stats = only_pool().get_stats()
    return stats["pool_size"] - stats["pool_available"]


def backend() -> int:
    """The process of PostgreSQL for the connection of this thread."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return int(cursor.fetchone()[0])


@contextmanager
def locked_elsewhere(*sessions: Session) -> Iterator[None]:
    """Another connection has locked the rows of the sessions in a transaction, on SQLite the whole database."""
    other = connection.copy()
    try:
        with other.cursor() as cursor:
            if other.vendor == "sqlite":
                cursor.execute("BEGIN IMMEDIATE")
            else:
                cursor.execute("BEGIN")
                keys = [session.pk for session in sessions]
                cursor.execute("SELECT id FROM sessions_app_session WHERE id = ANY(%s) FOR UPDATE", [keys])
        yield
        # The server learns of a closed connection a moment later.
        with other.cursor() as cursor:
            cursor.execute("ROLLBACK")
    finally:
        other.close()


@contextmanager
def without_writes(kind: str = "read-only") -> Iterator[None]:
    """The connection of this thread writes nothing: the database is read-only or, on SQLite, "full"."""
    if connection.vendor != "sqlite":
        begin, end = "SET default_transaction_read_only = on", "SET default_transaction_read_only = off"
    elif kind == "full":
        begin, end = "PRAGMA max_page_count = 1", "PRAGMA max_page_count = 1073741823"
    else:
        begin, end = "PRAGMA query_only = on", "PRAGMA query_only = off"
    with connection.cursor() as cursor:
        cursor.execute(begin)
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute(end)


def everything() -> dict[str, list[dict[str, Any]]]:
    """The rows of each model, as the database gives them: through the models it takes ten times as long."""
    rows = {}
    with connection.cursor() as cursor:
        for model in apps.get_app_config("sessions_app").get_models():
            key = model._meta.pk.column
            cursor.execute(f"SELECT * FROM {model._meta.db_table} ORDER BY {key}")
            columns = [column[0] for column in cursor.description]
            rows[model.__name__] = [dict(zip(columns, row, strict=True)) for row in cursor.fetchall()]
    return rows
