"""A pooled connection, and how long the pool accounts for it.

Used by `agentstate.postgresql.pool`, which says to whom a connection belongs.
"""

import os
import time
from collections import deque
from typing import Any
from weakref import finalize

import psycopg


class Stay(finalize):  # type: ignore[type-arg]
    """From when a connection comes into its pool until somebody returns it or the pool closes it, which detach this.

    Where nothing refers to the connection any more before that, an entry is added to `left`, and nothing else is done:
    the collector of garbage may have interrupted anything.
    """

    def __init__(self) -> None:
        """A stay that has not begun."""

    def begin(self, connection: "PooledConnection", left: deque[None]) -> None:
        super().__init__(connection, left.append, None)
        self.atexit = False


class PooledConnection(psycopg.Connection[Any]):
    """A connection that knows since when it is known to be alive.

    stay: the present or the last one; none before the first.
    is_lost: the pool has been told that it has one less.
    """

    is_lost = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.process = os.getpid()
        self.stay: Stay | None = None
        self.taken_at = self.alive_at = time.monotonic()

    @property
    def is_inherited(self) -> bool:
        """Whether it is the connection of the process that this one was forked from."""
        return self.process != os.getpid()

    def end_stay(self) -> None:
        """Called where the pool accounts for the connection itself from here on."""
        if self.stay is not None:
            self.stay.detach()


class InheritedConnection(PooledConnection):
    """A connection of the process that this one was forked from: no cursor of it can be used here."""

    def wait(self, gen: Any, *args: Any, **kwargs: Any) -> Any:
        gen.close()
        raise psycopg.InterfaceError(
            "This connection is that of another process, which this one was forked from."
        )
