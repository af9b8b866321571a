"""Celery's messages on Redis: what a worker asks for, and how it outlives a broker that is lost or refuses writes.

`agentstate.celery` gives `Channel` and `CONNECTION_ERRORS` to kombu's Redis transport. They differ from kombu's own in
three ways.

A worker asks for the messages that one of its free threads may run (`agentstate.worker_threads`).

For a channel whose connection was lost, nothing is done. kombu 5.7 puts messages back when the channel closes, and
acknowledges one that arrived just before on the channel that is closed; where the broker is gone, either may end the
worker with "Unrecoverable error". A message is only a wake-up: the sweep finds the session of one that is lost, and a
worker that gets one twice finds the session claimed.

A server that answers and refuses, since it has become a replica, cannot write to its disk or is full, counts as one
that is lost: kombu would let its answer end the worker. No connection is open until the server takes writes, so who
needs one tries again with growing pauses, as for a server that is away.
"""

from typing import Any

from kombu.transport import redis
from kombu.utils.scheduling import priority_cycle
from redis import Redis, RedisError, ResponseError

from agentstate.queues import QUEUES, URGENT_QUEUES
from agentstate.worker_threads import worker_threads

# A request to the broker cannot be changed once it waits there. One for urgent messages only is made again so often:
# for so long a thread that became free may wait for other messages.
ASK_SECONDS = 0.05
# The first version that takes parts of seconds.
OLDEST = 6
_CAN_WAIT = frozenset(QUEUES) - URGENT_QUEUES
CONNECTION_ERRORS: tuple[type[Exception], ...] = (*redis.Transport.connection_errors, ResponseError)
# A key that nobody makes. The server may let its user write to kombu's own keys only, with kombu's own commands.
_NEVER_THERE = "_kombu.binding.never-there"


def why_too_old(url: str) -> str:
    """Why this server cannot be the broker; empty where it can, or does not say now what it is."""
    try:
        with Redis.from_url(url, socket_connect_timeout=2, socket_timeout=2) as server:
            version = str(server.info("server")["redis_version"])
    except (RedisError, OSError, LookupError):
        return ""
    major = version.partition(".")[0]
    if major.isdecimal() and int(major) < OLDEST:
        return f"The broker is Redis {version}, and it has to be at least Redis {OLDEST}."
    return ""


def _only_urgent() -> bool:
    """Whether this worker's free threads run nothing but what must not wait; False in any other process."""
    threads = worker_threads()
    return threads.reserved > 0 and threads.only_reserved_are_free()


class QueueCycle(priority_cycle):  # type: ignore[type-arg]  # not generic when it runs
    """The queues that a worker asks for its next message, the first one first.

    Other queues, such as one that a tool reads, are asked as always.
    """

    def consume(self, n: int) -> list[str]:  # type: ignore[override]  # kombu returns lists
        """Called by kombu each time that it asks; without any queue, it does not."""
        queues = list(super().consume(n))
        if not _only_urgent():
            return queues
        left_out = frozenset(QUEUES) if worker_threads().none_is_free() else _CAN_WAIT
        return [name for name in queues if name not in left_out]


class QoS(redis.QoS):
    """Keeps messages until they are acknowledged, as long as their channel is open."""

    restore_at_shutdown = False

    def ack(self, delivery_tag: Any) -> None:
        """Acknowledge the message, unless its channel is closed."""
        if not self.channel.closed:
            super().ack(delivery_tag)

    def reject(self, delivery_tag: Any, requeue: bool = False) -> None:
        """Reject the message, unless its channel is closed."""
        if not self.channel.closed:
            super().reject(delivery_tag, requeue=requeue)


class Channel(redis.Channel):
    """A connection to the broker."""

    QoS = QoS
    queue_order_strategy = "agentstate.broker:QueueCycle"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """:raises ResponseError: if the server does not take writes."""
        super().__init__(*args, **kwargs)
        try:
            with self.conn_or_acquire() as client:
                # A write that could take memory, and that changes nothing: it sets only what is there.
                client.set(_NEVER_THERE, "", xx=True)
        except CONNECTION_ERRORS:
            self.close()
            raise

    def _brpop_start(self, timeout: float | None = None) -> None:
        if _only_urgent() and not _CAN_WAIT.isdisjoint(self.active_queues):
            timeout = ASK_SECONDS
        super()._brpop_start(timeout)  # type: ignore[misc]
