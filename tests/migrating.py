"""Databases as earlier versions of the desk had them, and migrating them one migration after the other."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from django.db import connection
from django.db.migrations.executor import MigrationExecutor
from django.db.migrations.loader import MigrationLoader

from tests.databases import connected
from tools.services import Postgres

# Of a fixture.
Older = Callable[[str], Any]


def migrate(name: str) -> Any:
    """Migrate to the migration of that name, one by one, or back to "zero"; returns the models as they are then."""
    executor = MigrationExecutor(connection)
    executor.loader = MigrationLoader(connection, replace_migrations=False)
    executor.migrate([("sessions_app", None if name == "zero" else name)])
    return models_at(name)


def models_at(name: str) -> Any:
    """The models as they were after the migration of that name, or at "zero"."""
    loader = MigrationLoader(None, replace_migrations=False)
    return loader.project_state([("sessions_app", name)] if name != "zero" else []).apps


class OlderDatabases:
    """Makes databases without rows as they were after a migration. Migrating takes seconds: each is made once, from the
    newest one that is older, and copied.

    :param folder: Where the files of SQLite lie.
    :param postgres: Gives the server, which is not started for tests that need none.
    """

    def __init__(self, folder: Path, postgres: Callable[[], Postgres]) -> None:
        self._folder = folder
        self._postgres = postgres
        self._made: dict[str, dict[str, str]] = {}
        self._copies = 0

    def __call__(self, kind: str, name: str) -> str:
        """The DATABASE_URL of one on "sqlite" or "postgres", as it was after that migration, or at "zero"."""
        if name == "zero":
            return self._copy(kind, "")
        made = self._made.setdefault(kind, {})
        if name not in made:
            older = max((other for other in made if other < name), default="")
            url = self._copy(kind, made.get(older, ""))
            with connected(url):
                migrate(name)
            made[name] = url
        return self._copy(kind, made[name])

    def _copy(self, kind: str, url: str) -> str:
        """:param url: Of a database that nobody is connected to; "" for an empty one."""
        if kind == "postgres":
            return self._postgres().new_database(url or "template1")
        self._copies += 1
        path = self._folder / f"{self._copies}.sqlite3"
        if url:
            shutil.copyfile(url.removeprefix("sqlite:///"), path)
        return f"sqlite:///{path}"
