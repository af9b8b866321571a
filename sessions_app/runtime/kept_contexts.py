"""What the model sees in sessions that have given way, kept in this process for the run that continues one of them.

A run that continues from a checkpoint reads the messages of its context and builds Haystack's objects of them, which
takes the longer the more messages there are. Where the same process goes on, it takes those of the run before. They
are in memory only and may be dropped at any time: a run that finds none reads them.

They hold as long as nothing was written in between. Each claim raises the session's epoch, and so does whoever changes
its history, so what was kept in one epoch holds in the next one only, and only at the checkpoint at which it was kept.
"""

import threading
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from functools import cache
from operator import is_
from sys import getsizeof
from time import monotonic
from typing import TYPE_CHECKING
from uuid import UUID

from django.conf import settings

from sessions_app.history.restore import CheckpointKey

if TYPE_CHECKING:
    from agentstate.durable.state.conversation import Context

# Another worker has the session by then, or it has come to rest.
KEPT_SECONDS = 600.0
_BYTES_OF_OBJECT, _BYTES_OF_DICT, _BYTES_OF_ITEM, _BYTES_OF_LIST, _BYTES_OF_NUMBER = 200, 80, 120, 80, 16
_NUMBERS = frozenset({int, float, bool, type(None)})


@dataclass(frozen=True, slots=True)
class Kept:
    """
    epoch: of the run that gave way.
    checkpoint: the last one of that run, of which this is the context.
    since: when it was kept, by `time.monotonic`.
    """

    epoch: int
    checkpoint: CheckpointKey
    context: "Context"
    since: float


class KeptContexts:
    """The contexts of the sessions that gave way last. May be used by any thread.

    :param most_bytes: So much memory they take at most.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._bytes = 0
        self._lock = threading.Lock()
        # The one that was kept last is at the end.
        self._kept: OrderedDict[UUID, Kept] = OrderedDict()

    @property
    def sessions(self) -> list[UUID]:
        """Of which something is kept, the oldest first."""
        return list(self._kept)

    @property
    def bytes(self) -> int:
        """The memory that they take."""
        return self._bytes

    def keep(
        self,
        session_id: UUID,
        *,
        epoch: int,
        checkpoint: CheckpointKey,
        context: "Context",
        began: "Context | None" = None,
    ) -> None:
        """Keep it, and drop the oldest of those for which there is no room.

        :param began: What the run began with, whose size is known.
        """
        if not self._most_bytes:
            return
        size = _bytes_of(context, began, most=self._most_bytes)
        kept = Kept(epoch, checkpoint, context._replace(bytes=size), monotonic())
        with self._lock:
            self._drop(session_id)
            if size <= self._most_bytes:
                self._kept[session_id] = kept
                self._bytes += size
            while self._bytes > self._most_bytes:
                self._drop(next(iter(self._kept)))

    def take(self, session_id: UUID, *, epoch: int) -> Kept | None:
        """What the run of this epoch may go on with; None if there is nothing. It is not kept any longer."""
        self.drop_old()
        with self._lock:
            kept = self._drop(session_id)
        return kept if kept is not None and kept.epoch + 1 == epoch else None

    def drop_old(self) -> None:
        """Drop what was kept `KEPT_SECONDS` ago. Each heartbeat of the process calls it."""
        now = monotonic()
        with self._lock:
            while self._kept and now - next(iter(self._kept.values())).since >= KEPT_SECONDS:
                self._drop(next(iter(self._kept)))

    def _drop(self, session_id: UUID) -> Kept | None:
        kept = self._kept.pop(session_id, None)
        self._bytes -= kept.context.bytes if kept is not None else 0
        return kept


@cache
def kept_contexts() -> KeptContexts:
    """Those of this process."""
    return KeptContexts(settings.AGENTSTATE_KEEP_MB * 1_000_000)


def _bytes_of(context: "Context", began: "Context | None", *, most: int) -> int:
    """About the memory of the context: measured of what it has more than the one that its run began with.

    :param most: Nothing is counted beyond that.
    """
    messages, counted = context.messages, 0
    if began is not None:
        # The run was given the list of the messages, and may have changed it in place.
        earlier, number = began.messages, len(began.positions)
        if number <= min(len(messages), len(earlier)) and all(map(is_, messages[:number], earlier)):
            messages, counted = messages[number:], began.bytes
    for message in messages:
        if counted > most:
            break
        counted += memory_of(message)
    return counted


def memory_of(value: object) -> int:
    """About the bytes of the object and of those that it consists of. Names are shared, and left out."""
    total = 0
    containers = [value]
    while containers:
        container = containers.pop()
        parts: Iterable[object]
        if isinstance(container, dict):
            total += _BYTES_OF_DICT + _BYTES_OF_ITEM * len(container)
            parts = container.values()
        elif isinstance(container, list | tuple):
            total += _BYTES_OF_LIST
            parts = container
        elif isinstance(container, Enum) or not hasattr(container, "__dict__"):
            continue
        else:
            total += _BYTES_OF_OBJECT
            parts = vars(container).values()
        for part in parts:
            kind = type(part)
            if kind is str:
                total += getsizeof(part)
            elif kind in _NUMBERS:
                total += _BYTES_OF_NUMBER
            elif part:
                containers.append(part)
    return total
