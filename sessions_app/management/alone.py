"""Lets one process at a time do what several must not do at once, such as migrating a database.

The others wait. The lock of a process that ends, however it does, is released by the system or by the server.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from django.db import connection

from agentstate.sqlite_file import MODE

# Of all advisory locks of a database this is ours: "agent" in ASCII.
ADVISORY_LOCK = 0x6167656E74


@contextmanager
def alone_with_folder(folder: Path) -> Iterator[None]:
    """No other process is in such a block with this folder, which is made if it is missing.

    :raises OSError: if the folder cannot be made or locked.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(os.open(folder, os.O_RDONLY)):
        yield


@contextmanager
def alone_with_database() -> Iterator[None]:
    """No other process is in such a block with this database. One of SQLite has a file for that beside it.

    :raises OSError: if the file cannot be made or locked.
    :raises Error: that of Django, if PostgreSQL cannot be asked.
    """
    if connection.vendor == "sqlite":
        name = str(connection.settings_dict["NAME"])
        if name == ":memory:" or name.startswith("file:"):
            yield
            return
        with _locked(os.open(f"{name}-lock", os.O_CREAT | os.O_RDWR, MODE)):
            yield
        return
    # A connection of its own: those of a pool come and go, and the lock is that of one.
    apart = connection.copy()
    apart.settings_dict["OPTIONS"].pop("connections", None)
    try:
        with apart.cursor() as cursor:
            # The other process may take minutes.
            cursor.execute("SET lock_timeout = 0")
            cursor.execute("SET statement_timeout = 0")
            cursor.execute("SELECT pg_advisory_lock(%s)", [ADVISORY_LOCK])
        yield
    finally:
        apart.close()


@contextmanager
def _locked(descriptor: int) -> Iterator[None]:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
