"""The tool cache on Redis, or in the database where there is none.

Values are JSON, never pickles, so Django's cache framework is not used. An unavailable Redis counts as an empty cache:
the tool then runs.
"""

from datetime import timedelta
from functools import lru_cache

from django.conf import settings
from django.utils import timezone

from agentstate.durable.cache import Json, ToolCache
from agentstate.journals.tool_cache import RedisToolCache
from sessions_app.models import ToolResult
from sessions_app.runtime.connection import RunConnection


class DatabaseToolCache:
    """One row of `ToolResult` per result. Uses the run's connection, since it is called where tools are."""

    def __init__(self, connection: RunConnection) -> None:
        self._connection = connection

    def get(self, key: str) -> Json | None:
        with self._connection.transaction():
            row = ToolResult.objects.filter(key=key, expires_at__gt=timezone.now()).first()
        return row.value if row else None

    def set(self, key: str, value: Json, ttl: float) -> None:
        expires_at = timezone.now() + timedelta(seconds=ttl)
        with self._connection.transaction():
            ToolResult.objects.update_or_create(key=key, defaults={"value": value, "expires_at": expires_at})


def tool_cache(connection: RunConnection) -> ToolCache:
    """The tool cache of a run."""
    return _redis(settings.REDIS_URL) if settings.REDIS_URL else DatabaseToolCache(connection)


@lru_cache(maxsize=1)
def _redis(url: str) -> RedisToolCache:
    return RedisToolCache(url)


def forget_expired() -> int:
    """Delete the expired results from the database, and return their number. Redis deletes its own."""
    return ToolResult.objects.filter(expires_at__lte=timezone.now()).delete()[0]
