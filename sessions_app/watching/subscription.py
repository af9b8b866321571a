"""One process's subscription to the news of all sessions, on the Redis server."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import redis.asyncio
from django.conf import settings

from sessions_app.watching.news import CHANNEL, SEPARATOR

# A connection on which nothing was heard for so long is asked for a sign of life, and given up after as long again.
SILENCE_SECONDS = 15.0


@asynccontextmanager
async def subscribed() -> AsyncIterator[AsyncIterator[Iterable[str]]]:
    """Entered once the server has confirmed the subscription; yields the ids of sessions that have changed.

    :raises redis.RedisError, OSError: if the server does not answer, or does so no more.
    """
    client = redis.asyncio.Redis.from_url(
        settings.REDIS_URL, decode_responses=True, socket_connect_timeout=2, socket_timeout=None
    )
    async with client, client.pubsub() as pubsub:
        await pubsub.subscribe(CHANNEL)
        if await pubsub.get_message(timeout=SILENCE_SECONDS) is None:
            raise redis.TimeoutError("The server did not confirm the subscription.")
        yield _batches(pubsub)


async def _batches(pubsub: "redis.asyncio.client.PubSub") -> AsyncIterator[Iterable[str]]:
    was_asked = False
    while True:
        message = await pubsub.get_message(timeout=SILENCE_SECONDS)
        if message is None:
            if was_asked:
                raise redis.TimeoutError("The server no longer answers.")
            await pubsub.ping()
            was_asked = True
            continue
        was_asked = False
        if message["type"] == "message":
            yield message["data"].split(SEPARATOR)
