"""Which stored message each live message is, and so what of a conversation is new.

A run's messages live in Haystack's State as one list, which hooks may rewrite at will. This room tells, at each
commit, which of them are stored already (and where), which are new, and whether the model still sees simply
everything (`context` None) or a selection. The cost of a step depends on what changed, not on the length.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from haystack.dataclasses import ChatMessage

from agentstate.durable.records import NewMessage
from agentstate.durable.state.encoding import message_body


@dataclass
class Change:
    """What a commit has to store of the conversation, in the port's terms."""

    messages: list[NewMessage]
    context: list[int] | None
    _live: list[ChatMessage] = field(repr=False)
    _new: list[ChatMessage] = field(repr=False)


class Conversation:
    def __init__(self) -> None:
        self._seen: list[ChatMessage] = []
        self._positions: list[int] = []
        self._later: list[tuple[int, ChatMessage]] = []
        self._inbox: dict[int, tuple[int, ChatMessage]] = {}

    def start_from(self, messages: Sequence[ChatMessage], positions: Sequence[int]) -> None:
        """Take what the model saw at a checkpoint as known."""
        self._seen, self._positions, self._later = list(messages), list(positions), []

    def stored(self, message: ChatMessage, position: int) -> None:
        """Note that a message has been stored since the checkpoint, at `position`."""
        self._later.append((position, message))

    def from_inbox(self, message: ChatMessage, inbox_id: int) -> None:
        """Note that a message lies in the inbox: storing it means taking it out of there."""
        self._inbox[id(message)] = (inbox_id, message)

    def change(self, live: list[ChatMessage]) -> Change:
        """What of `live` has to be stored, and what the model sees from here on."""
        known = len(self._seen)
        if live[:known] == self._seen:
            tail = live[known:]
            places = self._places(tail, self._later)
            if places == [position for position, _ in self._later] + [None] * (len(tail) - len(self._later)):
                new = tail[len(self._later) :]
                return Change(self._new(new), None, live, new)
            places = [*self._positions, *places]
        else:
            places = self._places(live, [*zip(self._positions, self._seen, strict=True), *self._later])
        new = [message for message, place in zip(live, places, strict=True) if place is None]
        numbers = iter(range(-1, -len(new) - 1, -1))
        return Change(
            self._new(new), [next(numbers) if place is None else place for place in places], live, new
        )

    def committed(
        self, change: Change, positions: Sequence[int], folded: Iterable[tuple[int, ChatMessage]] = ()
    ) -> None:
        """Take the state after a commit of `change` as known; its new messages got `positions`."""
        if change.context is None:
            self._positions += [position for position, _ in self._later] + list(positions)
        else:
            self._positions = [positions[-place - 1] if place < 0 else place for place in change.context]
        self._seen, self._later = list(change._live), []
        for message in change._new:
            self._inbox.pop(id(message), None)
        for position, message in folded:
            self._seen.append(message)
            self._positions.append(position)

    def _places(
        self, messages: Sequence[ChatMessage], stored: Sequence[tuple[int, ChatMessage]]
    ) -> list[int | None]:
        """The stored position of each message: that of the same object, else of an equal one not yet taken."""
        by_id: dict[int, list[int]] = {}
        for position, message in reversed(stored):
            by_id.setdefault(id(message), []).append(position)
        places: list[int | None] = [
            by_id[id(message)].pop() if by_id.get(id(message)) else None for message in messages
        ]
        taken = set(places)
        for index, message in enumerate(messages):
            if places[index] is None and id(message) not in self._inbox:
                place = next((p for p, other in stored if p not in taken and other == message), None)
                places[index] = place
                taken.add(place)
        return places

    def _new(self, messages: Iterable[ChatMessage]) -> list[NewMessage]:
        return [
            NewMessage(inbox_id=self._inbox[id(message)][0])
            if id(message) in self._inbox
            else NewMessage(message_body(message))
            for message in messages
        ]
