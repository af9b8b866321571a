"""The tool cache: results of calls that may be reused for a while.

The key is ``tool:cache:{tool}:{hash}``, the hash a whole SHA-256 of the scope and the arguments as canonical
JSON. The scope is the agent's key; for an agent without one, its session and definition.
"""

import threading
import time
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from agentstate.durable.canonical import digest_of

Json = Any


@runtime_checkable
class ToolCache(Protocol):
    def get(self, key: str) -> Json | None:
        """The value that was given to `set` for the key; None if there is none, or it has expired."""

    def set(self, key: str, value: Json, ttl: float) -> None:
        """Store the value for `ttl` seconds, atomically."""


def cache_key(scope: str, tool: str, arguments: Json) -> str:
    """The key of a call, at most 276 characters. Agents do not share results: their tools of one name may differ."""
    return f"tool:cache:{tool[:200]}:{digest_of([scope, arguments])}"


class MemoryToolCache:
    """A cache in this process: for library use and tests."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._entries: dict[str, tuple[float, Json]] = {}
        self._lock = threading.Lock()

    def get(self, key: str) -> Json | None:
        with self._lock:
            expires_at, value = self._entries.get(key, (0.0, None))
            return value if self._clock() < expires_at else None

    def set(self, key: str, value: Json, ttl: float) -> None:
        with self._lock:
            self._entries[key] = (self._clock() + ttl, value)
