"""How long a process may hold a lock on PostgreSQL, and wait for one, as options of its connections."""


def lock_limits(lease_seconds: float) -> str:
    """The options of a PostgreSQL connection that limit how long a process holds a lock and waits for one.

    A process that is stopped inside a transaction keeps its locks: the server ends the transaction when a lease would
    have expired meanwhile.
    """
    milliseconds = max(1, round(lease_seconds * 1000))
    return f"-c idle_in_transaction_session_timeout={milliseconds} -c lock_timeout={milliseconds}"
