"""What the errors of the database say about it: is it away for the moment, or does it only take no writes?

For all that catches such errors. Whether it has waited for a lock in vain is said by `sessions_app.locks`, and whether
no connection was free by `sessions_app.pooling`.
"""

import sqlite3

from django.db import InterfaceError, InternalError, OperationalError

# InternalError is what psycopg makes of an idle_in_transaction_session_timeout, and of a server that is read-only.
UNAVAILABLE = (OperationalError, InterfaceError, InternalError)
# Where the server has said why: it lacks something for the moment, another transaction was in the way, it is stopped or
# has been a replica so far, its disk has failed (https://www.postgresql.org/docs/current/errcodes-appendix.html).
_PASSING = ("08", "25006", "25P03", "40", "53", "55P03", "57", "58")
# Of a replica, or a database that was set to read-only; without space or memory; that is stopped or started.
_WITHOUT_WRITES = ("25006", "53", "57P")
_SQLITE_WITHOUT_WRITES = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY)
# What a new connection to a database on a full disk says, which cannot make its shared memory.
_SQLITE_WITHOUT_SPACE = sqlite3.SQLITE_IOERR_SHMSIZE


def may_pass(error: BaseException) -> bool:
    """Whether Django raised the error because of the database, not of the statement: another attempt may succeed.

    Of a group, whether each of its errors is one.
    """
    if isinstance(error, BaseExceptionGroup):
        return all(map(may_pass, error.exceptions))
    state = _state(error)
    return isinstance(error, UNAVAILABLE) and (state is None or state.startswith(_PASSING))


def takes_no_writes(error: BaseException) -> bool:
    """Whether Django raised the error because the database takes no writes at present. Nothing has changed then."""
    cause = error.__cause__
    if isinstance(cause, sqlite3.Error):
        # The low byte is the primary code; `sqlite_errorcode` is missing where the module itself raised the error.
        code = getattr(cause, "sqlite_errorcode", 0)
        return code & 0xFF in _SQLITE_WITHOUT_WRITES or code == _SQLITE_WITHOUT_SPACE
    state = _state(error)
    return state is not None and state.startswith(_WITHOUT_WRITES)


def in_one_line(error: BaseException) -> str:
    """For the log of what tries again and again, where a traceback says no more. Of a group, each text once."""
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(dict.fromkeys(map(in_one_line, error.exceptions)))
    return " ".join(str(error).split()).rstrip(".")


def _state(error: BaseException) -> str | None:
    """The code that PostgreSQL has given, if it has said anything."""
    state: str | None = getattr(error.__cause__, "sqlstate", None)
    return state
