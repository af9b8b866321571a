"""Every tool cache stores results as JSON, until they expire."""

import json
from datetime import timedelta
from typing import Any

import pytest
import redis
from django.utils import timezone

from agentstate.durable.cache import MemoryToolCache, ToolCache, cache_key
from agentstate.journals.tool_cache import RedisToolCache
from sessions_app.models import ToolResult
from sessions_app.runtime.connection import RunConnection
from sessions_app.runtime.tool_cache import DatabaseToolCache, forget_expired, tool_cache

VALUE = {"result": {"documents": ["Glass, section 4"], "n": 1}}


def database(request: pytest.FixtureRequest) -> ToolCache:
    request.getfixturevalue("db")
    return DatabaseToolCache(RunConnection())


def on_redis(request: pytest.FixtureRequest) -> ToolCache:
    return RedisToolCache(request.getfixturevalue("redis_url"))


@pytest.fixture(params=["memory", "database", "redis"])
def cache(request: pytest.FixtureRequest) -> ToolCache:
    if request.param == "memory":
        return MemoryToolCache()
    return database(request) if request.param == "database" else on_redis(request)


def test_what_is_stored_is_found_until_it_expires(cache: ToolCache) -> None:
    assert cache.get("tool:cache:search:a") is None
    cache.set("tool:cache:search:a", VALUE, 60)
    cache.set("tool:cache:search:b", {"result": None}, 60)

    assert cache.get("tool:cache:search:a") == VALUE
    assert cache.get("tool:cache:search:b") == {"result": None}


def test_a_later_result_takes_the_place_of_the_earlier_one(cache: ToolCache) -> None:
    cache.set("tool:cache:search:a", {"result": "old"}, 60)
    cache.set("tool:cache:search:a", {"result": "new"}, 60)

    assert cache.get("tool:cache:search:a") == {"result": "new"}


def test_expired_results_are_deleted_from_the_database(db: None) -> None:
    cache = DatabaseToolCache(RunConnection())
    cache.set("tool:cache:search:a", VALUE, 60)
    ToolResult.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    cache.set("tool:cache:search:b", VALUE, 60)

    assert cache.get("tool:cache:search:a") is None
    assert forget_expired() == 1
    assert cache.get("tool:cache:search:b") == VALUE


def test_redis_holds_plain_json_with_a_time_limit_under_the_documented_key(redis_url: str) -> None:
    key = cache_key("claims", "search_knowledge", {"query": "glass"})
    RedisToolCache(redis_url).set(key, VALUE, 3600)

    server = redis.Redis.from_url(redis_url)
    assert key.startswith("tool:cache:search_knowledge:")
    assert json.loads(server.get(key) or b"") == VALUE
    assert 3590 < server.ttl(key) <= 3600


def test_an_unavailable_redis_is_an_empty_cache() -> None:
    cache = RedisToolCache("redis://127.0.0.1:1/0")

    cache.set("tool:cache:search:a", VALUE, 60)

    assert cache.get("tool:cache:search:a") is None


@pytest.mark.parametrize("url, kind", [("", DatabaseToolCache), ("redis://127.0.0.1:1/0", RedisToolCache)])
def test_redis_is_used_where_there_is_one(settings: Any, url: str, kind: type, db: None) -> None:
    settings.REDIS_URL = url

    assert isinstance(tool_cache(RunConnection()), kind)


def test_calls_that_differ_in_agent_tool_or_arguments_have_keys_of_their_own() -> None:
    keys = {
        cache_key(agent, tool, arguments)
        for agent in ("claims", "shop")
        for tool in ("a", "b")
        for arguments in ({"q": 1}, {"q": "1"}, {"q": [1]}, {})
    }

    assert len(keys) == 16
