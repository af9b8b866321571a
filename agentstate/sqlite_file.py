"""SQLite connections to a file that only its owner can read, whichever process creates it.

The file holds every conversation, and session cookies besides. SQLite gives its companions (the write-ahead log and
the shared memory, for which names end in -wal and -shm) the mode of the database file.
"""

import os
import sqlite3
from contextlib import suppress
from typing import Any

MODE = 0o600


class OwnersConnection(sqlite3.Connection):
    """For ``OPTIONS["factory"]``: makes the file with MODE, and gives MODE to one that others can read.

    A file that belongs to another user is left as it is.
    """

    def __init__(self, database: str | os.PathLike[str], *args: Any, **kwargs: Any) -> None:
        path = os.fspath(database)
        # In memory, or a URI that says itself how the file is opened.
        if path != ":memory:" and not path.startswith("file:"):
            restrict(path)
        super().__init__(database, *args, **kwargs)


def restrict(path: str) -> None:
    """Make the file if there is none. One that cannot be made is for SQLite to complain about."""
    with suppress(OSError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, MODE))
    for name in (path, f"{path}-wal", f"{path}-shm"):
        with suppress(OSError):
            if os.stat(name).st_mode & 0o077:
                os.chmod(name, MODE)
