"""The short-lived buffer that workers and web processes share: on Redis, or else in this process.

Without REDIS_URL one process is web server and worker, so its memory will do. Nothing raises: a server that is
unavailable counts as an empty buffer.
"""

import os
import threading
import time
from collections.abc import Callable, Collection
from functools import lru_cache
from typing import Protocol

from django.conf import settings


class Buffer(Protocol):
    def write(self, key: str, values: dict[str, str], *, seconds: float) -> None:
        """Hold these values under the key for so long, in place of those before."""

    def read(self, key: str, *names: str) -> list[str]:
        """The values of these names, "" for each that there is none of."""

    def remove(self, key: str) -> None:
        """Forget what is held under the key."""

    def mark(self, members: Collection[tuple[str, str, float]]) -> None:
        """Of each a key, a member, and for how many seconds it is counted to the set under that key."""

    def marked(self, *keys: str) -> list[list[str]]:
        """The members of the set under each key."""


class MemoryBuffer:
    """The buffer in this process."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._values: dict[str, tuple[float, dict[str, str]]] = {}
        self._sets: dict[str, dict[str, float]] = {}

    def write(self, key: str, values: dict[str, str], *, seconds: float) -> None:
        with self._lock:
            self._forget()
            self._values[key] = (self._clock() + seconds, dict(values))

    def read(self, key: str, *names: str) -> list[str]:
        with self._lock:
            until, values = self._values.get(key, (0.0, {}))
            return [values.get(name, "") if until > self._clock() else "" for name in names]

    def remove(self, key: str) -> None:
        with self._lock:
            self._values.pop(key, None)

    def mark(self, members: Collection[tuple[str, str, float]]) -> None:
        with self._lock:
            self._forget()
            for key, member, seconds in members:
                self._sets.setdefault(key, {})[member] = self._clock() + seconds

    def marked(self, *keys: str) -> list[list[str]]:
        with self._lock:
            now = self._clock()
            return [
                [member for member, until in self._sets.get(key, {}).items() if until > now] for key in keys
            ]

    def _forget(self) -> None:
        """Forget what is out of date: the buffer is as large as what is open now."""
        now = self._clock()
        self._values = {key: held for key, held in self._values.items() if held[0] > now}
        sets = {
            key: {member: until for member, until in members.items() if until > now}
            for key, members in self._sets.items()
        }
        self._sets = {key: members for key, members in sets.items() if members}


def buffer() -> Buffer:
    """The configured buffer."""
    return _redis(settings.REDIS_URL) if settings.REDIS_URL else _in_memory()


@lru_cache(maxsize=4)
def _redis(url: str) -> Buffer:
    from sessions_app.watching.redis_buffer import RedisBuffer  # its client takes a while to import

    return RedisBuffer(url)


@lru_cache(maxsize=1)
def _in_memory() -> MemoryBuffer:
    return MemoryBuffer()


os.register_at_fork(after_in_child=_in_memory.cache_clear)
