"""Celery's messages on Redis, made so that a worker outlives a broker that is lost.

`agentstate.celery` gives `QoS` to kombu's Redis channel, which has it keep the messages that are not acknowledged yet.
It differs from kombu's own in what it does for a channel whose connection was lost: nothing. kombu 5.7 puts messages
back when the channel closes, and acknowledges one that arrived just before on the channel that is closed; where the
broker is gone, either may end the worker with "Unrecoverable error". A message is only a wake-up: the sweep finds the
session of one that is lost, and a worker that gets one twice finds the session claimed.
"""

from typing import Any

from kombu.transport import redis


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
