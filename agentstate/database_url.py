"""How the settings read DATABASE_URL. What can never connect is refused with a sentence that says what to do."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import dj_database_url
from django.core.exceptions import ImproperlyConfigured

from agentstate.environment import ENCODED, check_host_and_port, text
from agentstate.postgresql.limits import lock_limits
from agentstate.sqlite_file import OwnersConnection

# What Django, and Python, take besides the parameters of the database's own library.
_OF_POSTGRESQL: Final = frozenset(
    {"assume_role", "isolation_level", "prepare_threshold", "server_side_binding"}
)
_OF_SQLITE: Final = frozenset(
    {
        "cached_statements",
        "check_same_thread",
        "detect_types",
        "init_command",
        "isolation_level",
        "timeout",
        "transaction_mode",
        "uri",
    }
)


def database(folder: Path, lease_seconds: float, connections: int) -> dict[str, Any]:
    """
    :param folder: That of the SQLite file where DATABASE_URL is not set.
    """
    url = text("DATABASE_URL") or f"sqlite:///{folder / 'db.sqlite3'}"
    if not url.startswith(("sqlite:", "postgres:", "postgresql:")):
        raise ImproperlyConfigured(
            "DATABASE_URL must begin with sqlite:/// or postgres://, the supported databases."
        )
    if url.startswith("sqlite:"):
        return _sqlite(url)
    return _postgresql(url, lease_seconds, connections)


def _sqlite(url: str) -> dict[str, Any]:
    database = _parsed(url)
    folder = Path(database["NAME"]).parent
    if not database["NAME"].startswith((":memory:", "file:")) and not folder.is_dir():
        raise ImproperlyConfigured(
            f"DATABASE_URL: there is no folder {folder.absolute()} for the SQLite file. Create it, or name a "
            "file in another one: sqlite:////var/lib/agentstate/db.sqlite3."
        )
    _check_options(database["OPTIONS"], _OF_SQLITE)
    database["ENGINE"] = "agentstate.sqlite"
    # IMMEDIATE: a transaction takes the write lock when it begins, so that writers wait instead of failing.
    database["OPTIONS"] = {
        "factory": OwnersConnection,
        "transaction_mode": "IMMEDIATE",
        "timeout": 20,
        "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA wal_autocheckpoint=4000;",
        **database["OPTIONS"],
    }
    return database


def _postgresql(url: str, lease_seconds: float, connections: int) -> dict[str, Any]:
    check_host_and_port("DATABASE_URL", url)
    database = _parsed(url)
    options = database["OPTIONS"]
    if not database["NAME"] and "service" not in options:
        raise ImproperlyConfigured(
            f"DATABASE_URL must end with the name of a database, such as postgres://host/agentstate. {ENCODED}"
        )
    if "connections" in options:
        raise ImproperlyConfigured("Set AGENTSTATE_CONNECTIONS instead of connections in DATABASE_URL.")
    if options:
        from psycopg.pq import Conninfo

        parameters = {parameter.keyword.decode() for parameter in Conninfo.get_defaults()}
        _check_options(options, parameters | _OF_POSTGRESQL)
    database["ENGINE"] = "agentstate.postgresql"
    if connections:
        # Every thread returns its connection to the pool when it is done with it.
        options["connections"], database["CONN_MAX_AGE"] = connections, 0
    # The last one counts where an option is given twice. libpq reads PGOPTIONS only where no options are given.
    given_options = options.get("options", os.environ.get("PGOPTIONS", ""))
    options["options"] = f"{lock_limits(lease_seconds)} {given_options}".strip()
    return database


def _parsed(url: str) -> dict[str, Any]:
    database: dict[str, Any] = {**dj_database_url.parse(url, conn_max_age=60, conn_health_checks=True)}
    database.setdefault("OPTIONS", {})
    return database


def _check_options(given: Iterable[str], known: Iterable[str]) -> None:
    """An unknown name is not shown: it may be a part of a password that is not encoded."""
    if not set(given) <= set(known):
        raise ImproperlyConfigured(
            f"DATABASE_URL has an option that this database does not know, behind its ?. {ENCODED}"
        )
