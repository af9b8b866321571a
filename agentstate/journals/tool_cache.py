"""The tool cache on Redis or Valkey: one STRING per result, whose time limit is set in the same command.

Values are JSON, never pickles. A server that is unavailable counts as an empty cache: the tool then runs. Needs the
client of the extra `valkey`, or of the desk.
"""

import json
import logging

import redis

from agentstate.durable.cache import Json

logger = logging.getLogger(__name__)


class RedisToolCache:
    def __init__(self, server: "str | redis.Redis") -> None:
        """:param server: Its URL, or a client."""
        self._redis = (
            redis.Redis.from_url(server, socket_connect_timeout=2, socket_timeout=5)
            if isinstance(server, str)
            else server
        )

    def get(self, key: str) -> Json | None:
        try:
            text = self._redis.get(key)
            return None if text is None else json.loads(text)
        except (redis.RedisError, ValueError):
            logger.warning("The tool cache cannot be read.", exc_info=True)
            return None

    def set(self, key: str, value: Json, ttl: float) -> None:
        try:
            self._redis.set(key, json.dumps(value), px=max(1, round(ttl * 1000)))
        except redis.RedisError:
            logger.warning("The tool cache cannot be written.", exc_info=True)
