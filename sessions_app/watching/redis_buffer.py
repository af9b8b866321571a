"""The short-lived buffer on a Redis or Valkey server: a HASH for each key, and a ZSET of times for each set.

A server that is unavailable counts as an empty buffer, and is asked again after a few seconds: neither a page nor a run
waits for it again and again.
"""

import logging
import time
from collections.abc import Callable, Collection
from typing import Any

import redis

logger = logging.getLogger(__name__)

PATIENCE_SECONDS = 0.25
AGAIN_SECONDS = 5.0


class RedisBuffer:
    """`buffer.Buffer` on a server."""

    def __init__(self, url: str, clock: Callable[[], float] = time.time) -> None:
        self._redis = redis.Redis.from_url(
            url,
            decode_responses=True,
            socket_connect_timeout=PATIENCE_SECONDS,
            socket_timeout=PATIENCE_SECONDS,
        )
        self._clock = clock
        self._away_until = 0.0

    def write(self, key: str, values: dict[str, str], *, seconds: float) -> None:
        def change() -> None:
            with self._redis.pipeline(transaction=True) as pipeline:
                pipeline.delete(key)
                pipeline.hset(key, mapping=dict[Any, Any](values))
                pipeline.pexpire(key, round(seconds * 1000))
                pipeline.execute()

        self._try(change, None)

    def read(self, key: str, *names: str) -> list[str]:
        held: list[Any] = self._try(lambda: self._redis.hmget(key, list(names)), [None] * len(names))
        return [value or "" for value in held]

    def remove(self, key: str) -> None:
        self._try(lambda: self._redis.delete(key), 0)

    def mark(self, members: Collection[tuple[str, str, float]]) -> None:
        now = self._clock()

        def change() -> None:
            with self._redis.pipeline(transaction=True) as pipeline:
                for key, member, seconds in members:
                    pipeline.zadd(key, {member: now + seconds})
                    pipeline.zremrangebyscore(key, "-inf", now)
                    pipeline.pexpire(key, round(seconds * 1000))
                pipeline.execute()

        self._try(change, None)

    def marked(self, *keys: str) -> list[list[str]]:
        now = self._clock()

        def read() -> Any:
            with self._redis.pipeline(transaction=False) as pipeline:
                for key in keys:
                    pipeline.zrangebyscore(key, f"({now}", "+inf")
                return pipeline.execute()

        members: list[list[str]] = self._try(read, [[] for _ in keys])
        return members

    def _try(self, ask: Callable[[], Any], otherwise: Any) -> Any:
        """What the server answers; ``otherwise`` while it is unavailable."""
        if self._clock() < self._away_until:
            return otherwise
        try:
            return ask()
        except (redis.RedisError, OSError, ValueError) as error:
            self._away_until = self._clock() + AGAIN_SECONDS
            logger.warning("Open pages show no replies that are being written: %s", error)
            return otherwise
