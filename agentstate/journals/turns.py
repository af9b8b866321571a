"""The turns of a session's current history: what was asked, under which key, and how each ended.

A `Turns` follows the records of a `Store` and holds what a script needs to know that is killed and run again: which
turn is unfinished, and what an earlier one answered. It belongs to the store and is guarded by its lock.
"""

from dataclasses import dataclass, field
from typing import Any

from agentstate.durable.records import UnreadMessage
from agentstate.names import RunEvent

Json = Any
Record = dict[str, Json]


@dataclass(slots=True)
class Turn:
    """
    :param messages: The bodies of the messages that began it.
    :param unread_ids: Those of the messages that were asked for this turn alone.
    :param began_at: The position of its first checkpoint; 0 until it has begun.
    :param inputs: Those of its run, once it has begun.
    :param end: How it ended (the record of the end of its run), or failed; empty until then.
    :param context: The positions of the messages that the model has seen at its end.
    """

    key: str
    messages: list[Record]
    unread_ids: list[int] = field(default_factory=list)
    began_at: int = 0
    inputs: Record = field(default_factory=dict)
    end: Record = field(default_factory=dict)
    context: tuple[int, ...] = ()
    state: Record = field(default_factory=dict)
    counters: Record = field(default_factory=dict)

    @property
    def begun(self) -> bool:
        return self.began_at > 0

    @property
    def finished(self) -> bool:
        return bool(self.end) and self.end["event"] == RunEvent.FINISHED

    @property
    def failed(self) -> bool:
        return bool(self.end) and not self.finished


class Turns:
    def __init__(self) -> None:
        self.all: list[Turn] = []

    def by_key(self, key: str) -> Turn | None:
        return next((turn for turn in self.all if turn.key == key), None)

    @property
    def is_asked(self) -> bool:
        """Whether the turn that comes next was asked for and has not begun."""
        return self.unfinished is not None and not self.unfinished.begun

    @property
    def unfinished(self) -> Turn | None:
        """The turn that continues when the session runs next; a failed one is tried again."""
        return self.all[-1] if self.all and not self.all[-1].finished else None

    def asked(self, key: str, messages: list[Record], unread_ids: list[int] | None = None) -> None:
        self.all.append(Turn(key, messages, unread_ids or []))

    def said(self, message: Record) -> None:
        """A message without a turn of its own begins one, unless a turn is in progress that will read it."""
        turn = self.unfinished
        if turn is None:
            self.asked("", [message])
        elif not turn.begun:
            turn.messages.append(message)

    def began(self, position: int, inputs: Record) -> None:
        """A step of a turn began; in a session made of a state, of a turn that nobody asked here."""
        if self.unfinished is None:
            self.asked("", [])
        if not self.all[-1].begun:
            self.all[-1].began_at, self.all[-1].inputs = position, inputs

    def went_back(self, position: int) -> tuple[Turn, set[int]]:
        """The session goes back to the start of a step: its turn is unfinished again, and later ones are discarded.

        :returns: The turn, and the ids of the messages of later ones, which are not read any more.
        """
        later = [turn for turn in self.all if not 0 < turn.began_at <= position]
        self.all = [turn for turn in self.all if 0 < turn.began_at <= position]
        turn = self.all[-1]
        turn.end = {}
        return turn, {unread_id for turn in later for unread_id in turn.unread_ids}

    def ended(self, end: Record, unread: list[UnreadMessage]) -> None:
        """The turn ended by this record. What is unread then begins the next one."""
        turn = self.unfinished
        if turn is None or end["event"] not in (RunEvent.FINISHED, RunEvent.FAILED):
            return
        turn.end = end
        if turn.finished and unread:
            self.asked("", [message.body for message in unread])
