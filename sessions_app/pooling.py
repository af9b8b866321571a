"""A connection that a pool lends to a request: given back before a long wait, and recognised where none was free.

Only PostgreSQL has a pool, see `agentstate.postgresql.pool`. A request that has written keeps its connection, so that
it cannot fail for want of one afterwards.
"""

from django.db.backends.base.base import BaseDatabaseWrapper


def give_back(connection: BaseDatabaseWrapper) -> None:
    """Let the pool have the connection until it is used again. Nothing is done in a transaction, or without a pool."""
    if getattr(connection, "pool", None) is not None and not connection.in_atomic_block:
        connection.close()


def is_timeout(error: BaseException) -> bool:
    """Whether Django raised the error because the pool had no connection in time."""
    if error.__cause__ is None:
        return False
    from psycopg_pool import PoolTimeout  # a desk on SQLite does not import it

    return isinstance(error.__cause__, PoolTimeout)
