"""The port of the long-term memory: what agents learned in one session and find again in later ones.

A memory is bound to one scope, for which the adapter stands: one agent and one customer. The tools are in
`agentstate.durable.long_term_tools`; they find the memory of the run by `current`. Needs no Haystack.
"""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Protocol, runtime_checkable

# Characters of one entry.
LONGEST_ENTRY = 2_000
# So many entries of a scope are looked at, the newest.
MOST_ENTRIES = 1_000


class NotRemembered(Exception):
    """Nothing can be remembered here. The message says why, to the model."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What was learned, and when."""

    text: str
    learned_at: datetime


class LongTermMemory(Protocol):
    def remember(self, text: str, *, call: str) -> None:
        """Store the text, once for each call: a call that runs again stores nothing twice.

        :param call: The idempotency key of the tool call, from which the entry was learned.
        :raises NotRemembered: if the memory takes no entries.
        """

    def recall(self, query: str, *, limit: int) -> list[Entry]:
        """The entries that have most to do with the query, best first; at most `limit`.

        :raises NotRemembered: if the memory has no entries for this session.
        """


@runtime_checkable
class SharedMemory(LongTermMemory, Protocol):
    """A memory that does not see the histories of its sessions, and so is told what they discard."""

    def discard(self, session: str, calls: Collection[str]) -> None:
        """Offer no entry that one of these calls of the session remembered, nor will remember; but those of its others.

        It takes the place of what was said of the session before.

        :param session: Another text for each session.
        :param calls: The idempotency keys of all calls that the current history of the session does not show.
        """


_current: ContextVar[LongTermMemory | None] = ContextVar("agentstate_long_term_memory", default=None)


def current() -> LongTermMemory | None:
    """The long-term memory of the run that this code is part of; None where there is none."""
    return _current.get()


@contextmanager
def using(memory: LongTermMemory | None) -> Iterator[None]:
    """Offer the memory to the tools of all that runs inside, also in the threads that it starts."""
    token = _current.set(memory)
    try:
        yield
    finally:
        _current.reset(token)


def entry_key(call: str, text: str) -> str:
    """What makes an entry unique. The text is part of it, since an agent that runs as one call may learn more."""
    return sha256(f"{call}\n{text}".encode()).hexdigest()
