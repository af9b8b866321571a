"""The tool cache: results of calls that may be reused for a while.

The key is ``tool:cache:{tool}:{hash}``, the hash a whole SHA-256 of the arguments as canonical JSON.
"""

import json
import threading
import time
from collections.abc import Callable
from hashlib import sha256
from typing import Any, Protocol

Json = Any


class ToolCache(Protocol):
    def get(self, key: str) -> Json | None:
        """What was stored under the key, wrapped as it was given to `set`, or None."""

    def set(self, key: str, value: Json, ttl: float) -> None:
        """Store for `ttl` seconds, value and time limit in one step."""


def cache_key(agent: str, tool: str, arguments: Json) -> str:
    text = json.dumps([agent, arguments], sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return f"tool:cache:{tool}:{sha256(text.encode()).hexdigest()}"


class MemoryToolCache:
    """For library use and tests: lives and dies with the process."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._held: dict[str, tuple[float, Json]] = {}
        self._lock = threading.Lock()

    def get(self, key: str) -> Json | None:
        with self._lock:
            until, value = self._held.get(key, (0.0, None))
            return value if self._clock() < until else None

    def set(self, key: str, value: Json, ttl: float) -> None:
        with self._lock:
            self._held[key] = (self._clock() + ttl, value)
