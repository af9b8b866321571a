"""Finds, at each commit, which live messages are stored already, and where, and which are new.

Haystack's State holds a run's messages as one list, which hooks may rewrite in any way. A `Change` also says whether
the model still sees every stored message (`context` None) or a selection. The cost of a step depends on what changed,
not on the length of the conversation.
"""

import operator
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from haystack.dataclasses import ChatMessage

from agentstate.durable.records import NewMessage
from agentstate.durable.state.chat_messages import encode_message, message_body
from agentstate.durable.state.own_prompt import OwnPrompt


class Context(NamedTuple):
    """The messages that the model sees at a checkpoint, in its order, and the position at which each is stored.

    bytes: about the memory that the messages take, where it is known.
    """

    messages: list[ChatMessage]
    positions: list[int]
    bytes: int = 0


@dataclass
class Change:
    """What a commit has to store of the conversation, as in `NewCheckpoint`."""

    messages: list[NewMessage]
    context: list[int] | None
    replaced_unread: tuple[int, ...]
    _live: list[ChatMessage] = field(repr=False)
    _unchanged: int  # So many messages at the beginning are those of the last commit.


@dataclass(frozen=True, slots=True)
class _Unread:
    """An unread message that begins the turn. `body` is that which it had when it was given to the agent."""

    id: int
    message: ChatMessage
    body: dict[str, Any]


class Conversation:
    def __init__(self) -> None:
        self._seen: list[ChatMessage] = []
        self._positions: list[int] = []
        self._since: list[tuple[int, ChatMessage]] = []
        self._unread: list[_Unread] = []
        # Whether a run that reads what is stored has the very messages that this one has.
        self._is_stored_as_it_is = True
        self.prompt = OwnPrompt()

    def start_from(self, context: Context) -> None:
        """Take what the model saw at a checkpoint as known."""
        self._seen, self._positions, self._since = list(context.messages), list(context.positions), []

    def at_last_commit(self) -> Context | None:
        """What the model sees at the last checkpoint; None if another run would read other messages than these.

        It may where a message could be stored in another form only, or has taken the place of an equal one.
        """
        return Context(self._seen, self._positions) if self._is_stored_as_it_is else None

    def stored(self, message: ChatMessage, position: int) -> None:
        """Note that a message has been stored since the checkpoint, at `position`."""
        self._is_stored_as_it_is &= type(message) is ChatMessage
        self._since.append((position, message))

    def from_unread(self, message: ChatMessage, unread_id: int) -> None:
        """Note that this is the unread message of that id: the next commit reads it, whatever hooks have made of it."""
        self._unread.append(_Unread(unread_id, message, message_body(message)))

    def change(self, live: list[ChatMessage]) -> Change:
        """What of `live` has to be stored, and what the model sees from here on."""
        seen_before = len(self._seen)
        unread = self._unread_among(live)
        goes_on = live[:seen_before] == self._seen and all(index >= seen_before for index in unread)
        # What the model saw before is left out of both lists where it goes on: a step costs what it adds.
        if goes_on:
            in_order = [position for position, _ in self._since]
            stored, first = self._since, seen_before
        else:
            stored, first = [*zip(self._positions, self._seen, strict=True), *self._since], 0
            in_order = [position for position, _ in stored]
        positions = self._stored_positions(live, range(first, len(live)), unread, stored)
        new = [first + number for number, position in enumerate(positions) if position is None]
        messages = [self._new_message(live[index], unread.get(index)) for index in new]
        read = {item.id for item in unread.values()}
        replaced = tuple(item.id for item in self._unread if item.id not in read)
        context = None
        if positions != [*in_order, *([None] * len(new))]:
            numbers = iter(range(-1, -len(new) - 1, -1))
            context = [next(numbers) if position is None else position for position in positions]
            if goes_on:
                context = [*self._positions, *context]
        return Change(messages, context, replaced, live, seen_before if goes_on else 0)

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
        self._seen[change._unchanged :] = change._live[change._unchanged :]
        self._since, self._unread = [], []
        for position, message in read:
            self._seen.append(message)
            self._positions.append(position)

    def _unread_among(self, live: Sequence[ChatMessage]) -> dict[int, _Unread]:
        """The unread messages that the conversation has, by their index: as the same object, else as an equal one.

        `State.get` gives copies. Unread messages come last, so equal ones are looked for from the end.
        """
        among: dict[int, _Unread] = {}
        missing = list(self._unread)
        for is_same in (operator.is_, operator.eq):
            for index in reversed(range(len(live))):
                if not missing:
                    return among
                item = next((item for item in reversed(missing) if is_same(item.message, live[index])), None)
                if item is not None and index not in among:
                    among[index] = item
                    missing.remove(item)
        return among

    def _stored_positions(
        self,
        live: Sequence[ChatMessage],
        indexes: Sequence[int],
        unread: Container[int],
        stored: Sequence[tuple[int, ChatMessage]],
    ) -> list[int | None]:
        """The stored position of each message: that of the same object, else of an equal one; None for a new one.

        No stored message is used twice.
        """
        by_id: dict[int, list[int]] = {}
        for position, message in reversed(stored):
            by_id.setdefault(id(message), []).append(position)
        positions: list[int | None] = [
            by_id[id(live[index])].pop() if by_id.get(id(live[index])) else None for index in indexes
        ]
        used = set(positions)
        for number, index in enumerate(indexes):
            if positions[number] is None and index not in unread:
                equal = next((p for p, other in stored if p not in used and other == live[index]), None)
                self._is_stored_as_it_is &= equal is None
                positions[number] = equal
                used.add(equal)
        return positions

    def _new_message(self, message: ChatMessage, unread: _Unread | None) -> NewMessage:
        body, is_unchanged = encode_message(message)
        self._is_stored_as_it_is &= is_unchanged and type(message) is ChatMessage
        if unread is None:
            return NewMessage(body)
        return NewMessage(None if body == unread.body else body, unread.id)
