"""Finds, at each commit, which live messages are stored already, and where, and which are new.

Haystack's State holds a run's messages as one list, which hooks may rewrite in any way. A `Change` also says whether
the model still sees every stored message (`context` None) or a selection. The cost of a step depends on what changed,
not on the length of the conversation.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from haystack.dataclasses import ChatMessage

from agentstate.durable.records import NewMessage
from agentstate.durable.state.encoding import message_body


@dataclass
class Change:
    """What a commit has to store of the conversation, as in `NewCheckpoint`."""

    messages: list[NewMessage]
    context: list[int] | None
    _live: list[ChatMessage] = field(repr=False)
    _new: list[ChatMessage] = field(repr=False)


class Conversation:
    def __init__(self) -> None:
        self._seen: list[ChatMessage] = []
        self._positions: list[int] = []
        self._since: list[tuple[int, ChatMessage]] = []
        self._unread: dict[int, tuple[int, ChatMessage]] = {}

    def start_from(self, messages: Sequence[ChatMessage], positions: Sequence[int]) -> None:
        """Take what the model saw at a checkpoint as known."""
        self._seen, self._positions, self._since = list(messages), list(positions), []

    def stored(self, message: ChatMessage, position: int) -> None:
        """Note that a message has been stored since the checkpoint, at `position`."""
        self._since.append((position, message))

    def from_unread(self, message: ChatMessage, unread_id: int) -> None:
        """Note that this is the unread message of that id: storing it means reading it."""
        self._unread[id(message)] = (unread_id, message)

    def change(self, live: list[ChatMessage]) -> Change:
        """What of `live` has to be stored, and what the model sees from here on."""
        known = len(self._seen)
        if live[:known] == self._seen:
            added = live[known:]
            positions = self._stored_positions(added, self._since)
            stored_since = [position for position, _ in self._since]
            if positions == stored_since + [None] * (len(added) - len(stored_since)):
                new = added[len(stored_since) :]
                return Change(self._new_messages(new), None, live, new)
            positions = [*self._positions, *positions]
        else:
            stored = [*zip(self._positions, self._seen, strict=True), *self._since]
            positions = self._stored_positions(live, stored)
        new = [message for message, position in zip(live, positions, strict=True) if position is None]
        numbers = iter(range(-1, -len(new) - 1, -1))
        context = [next(numbers) if position is None else position for position in positions]
        return Change(self._new_messages(new), context, live, new)

    def committed(
        self, change: Change, positions: Sequence[int], read: Iterable[tuple[int, ChatMessage]] = ()
    ) -> None:
        """Take what the model sees after a commit of `change` as known.

        :param positions: Those that the new messages got.
        :param read: The unread messages that the commit read, with their positions.
        """
        if change.context is None:
            self._positions += [position for position, _ in self._since] + list(positions)
        else:
            self._positions = [positions[-p - 1] if p < 0 else p for p in change.context]
        self._seen, self._since = list(change._live), []
        for message in change._new:
            self._unread.pop(id(message), None)
        for position, message in read:
            self._seen.append(message)
            self._positions.append(position)

    def _stored_positions(
        self, messages: Sequence[ChatMessage], stored: Sequence[tuple[int, ChatMessage]]
    ) -> list[int | None]:
        """The stored position of each message: that of the same object, else of an equal one; None for a new one.

        No stored message is used twice.
        """
        by_id: dict[int, list[int]] = {}
        for position, message in reversed(stored):
            by_id.setdefault(id(message), []).append(position)
        positions: list[int | None] = [
            by_id[id(message)].pop() if by_id.get(id(message)) else None for message in messages
        ]
        used = set(positions)
        for index, message in enumerate(messages):
            if positions[index] is None and id(message) not in self._unread:
                equal = next((p for p, other in stored if p not in used and other == message), None)
                positions[index] = equal
                used.add(equal)
        return positions

    def _new_messages(self, messages: Iterable[ChatMessage]) -> list[NewMessage]:
        return [
            NewMessage(unread_id=self._unread[id(message)][0])
            if id(message) in self._unread
            else NewMessage(message_body(message))
            for message in messages
        ]
