"""The Valkey or Redis server of a journal: its error messages, and whether it keeps what it confirms.

Needs the client of the extra `valkey`.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import redis

from agentstate.hosts import with_port
from agentstate.journals import layout


class JournalServerError(Exception):
    """The server of a journal cannot be used. The message names its address, without a password, and what to do."""


@contextmanager
def answering(client: "redis.Redis") -> Iterator[None]:
    """:raises JournalServerError: instead of what the client raises inside."""
    try:
        yield
    except redis.RedisError as error:
        raise JournalServerError(_failure(client, error)) from error


def failed(client: "redis.Redis", error: redis.RedisError) -> str:
    """What is said of a server that fails while a session is run."""
    return (
        f"The server of the journal at {_address(client)} failed: {_text(error)}. When it answers, run the session "
        "again: it continues from what the server has confirmed."
    )


def warn_unless_durable(client: "redis.Redis") -> None:
    """Warn the caller's caller of a server that may lose what it has confirmed.

    :raises JournalServerError: if it cannot be reached.
    """
    try:
        settings = {
            name: layout.text(cast(Any, client.config_get(name)).get(name, ""))
            for name in ("appendonly", "appendfsync")
        }
    except (redis.ConnectionError, redis.TimeoutError) as error:
        raise JournalServerError(_failure(client, error)) from error
    except redis.RedisError:
        why = "does not say whether it writes to disk before it confirms"
    else:
        if settings == {"appendonly": "yes", "appendfsync": "always"}:
            return
        why = "confirms before it has written to disk (it needs appendonly yes and appendfsync always)"
    warnings.warn(
        f"The server {why}: what it loses in a crash may be done again, and a tool call may run twice.",
        stacklevel=3,
    )


def _failure(client: "redis.Redis", error: redis.RedisError) -> str:
    where = f"The server of the journal at {_address(client)}"
    if isinstance(error, redis.AuthenticationError):
        return (
            f"{where} refuses this program: {_text(error)}. Give a user and a password that it accepts in its "
            "address: redis://USER:PASSWORD@HOST:PORT."
        )
    if isinstance(error, redis.ConnectionError | redis.TimeoutError):
        return (
            f"{where} cannot be reached: {_text(error)}. Start it, or correct the address, and run this again: the "
            "session continues from what the server has."
        )
    return f"{where} failed: {_text(error)}."


def _address(client: "redis.Redis") -> str:
    """Without user and password. Clients of several servers have none."""
    options = getattr(getattr(client, "connection_pool", None), "connection_kwargs", {})
    if path := options.get("path"):
        return str(path)
    return with_port(options.get("host", "localhost"), options.get("port", 6379))


def _text(error: redis.RedisError) -> str:
    return str(error).strip().rstrip(".")
