"""How long a transaction waits for a lock, and how to recognise that the wait timed out.

PostgreSQL locks rows, here that of a session; SQLite locks the whole database for its one writer. The settings of the
connection limit each wait (`agentstate.settings`). Here are shorter waits, for those who can say "try again": people's
requests, and claims. Reading waits for no lock on either database.
"""

import math
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from django.conf import settings
from django.db import connection, transaction

# How long a person's request waits: longer than any commit takes, and shorter than people do.
WAIT_SECONDS = 5.0
# So long is always waited, so that another's commit refuses nothing.
SHORTEST_SECONDS = 0.05

_PG_LOCK_NOT_AVAILABLE = "55P03"
_shared_until: ContextVar[float | None] = ContextVar("shared_until", default=None)


def wait_seconds() -> float:
    """How long a person's request waits for a lock. PostgreSQL ends an idle transaction after the length of a lease."""
    return min(WAIT_SECONDS, settings.AGENTSTATE_LEASE_SECONDS)


def retry_seconds() -> int:
    """After how many seconds a request that was refused for a lock is worth another try."""
    return math.ceil(settings.AGENTSTATE_LEASE_SECONDS)


def is_timeout(error: BaseException) -> bool:
    """Whether Django raised the error because the database did not get a lock in time."""
    cause = error.__cause__
    if isinstance(cause, sqlite3.Error):
        # The low byte is the primary code; `sqlite_errorcode` is missing where the module itself raised the error.
        return getattr(cause, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY
    return getattr(cause, "sqlstate", None) == _PG_LOCK_NOT_AVAILABLE


@contextmanager
def transaction_that_waits(seconds: float, *, durable: bool = False) -> Iterator[None]:
    """A transaction that waits so long at most for each lock; within `sharing_one_wait`, for what is left of it.

    :raises OperationalError: of which `is_timeout` is true, if the wait timed out. Nothing has changed then.
    """
    until = _shared_until.get()
    if until is not None:
        seconds = until - time.monotonic()
    milliseconds = round(max(seconds, SHORTEST_SECONDS) * 1000)
    if connection.vendor == "sqlite":
        with _sqlite_wait(milliseconds), transaction.atomic(durable=durable):
            yield
    else:
        wrapper: Any = connection
        with wrapper.atomic_with_lock_timeout(milliseconds, durable=durable):
            yield


@contextmanager
def sharing_one_wait() -> Iterator[None]:
    """Let all the transactions in this block wait no longer together than a single one of a person's request may."""
    token = _shared_until.set(time.monotonic() + wait_seconds())
    try:
        yield
    finally:
        _shared_until.reset(token)


@contextmanager
def writes_of_a_request() -> Iterator[None]:
    """Let what is written in this block without `transaction_that_waits` wait as long as a person's request may.

    On SQLite, where it waits for every other writer. On PostgreSQL only the rows of sessions are locked for long.
    """
    if connection.vendor == "sqlite":
        with _sqlite_wait(round(wait_seconds() * 1000)):
            yield
    else:
        yield


@contextmanager
def _sqlite_wait(milliseconds: int) -> Iterator[None]:
    """SQLite takes its one lock when the transaction begins, so the wait is set before."""
    connection.ensure_connection()
    waited = connection.connection
    [before] = waited.execute("PRAGMA busy_timeout").fetchone()
    waited.execute(f"PRAGMA busy_timeout = {milliseconds}")
    try:
        yield
    finally:
        if connection.connection is waited:  # A new connection has the usual one.
            waited.execute(f"PRAGMA busy_timeout = {before}")
