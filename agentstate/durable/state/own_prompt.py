"""Which of the system messages that lead the conversation are the agent's own prompt.

The agent puts its prompt in front of each turn anew, so a later turn begins without that of the turn before. What the
caller or a hook put there is no part of it, and stays. Hooks may rewrite, move or drop messages: the prompt is
followed from commit to commit, and each checkpoint has the places where it stands, if these are not the usual.
"""

from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any

from haystack.dataclasses import ChatMessage, ChatRole

from agentstate.names import PROMPT_PLACES


class OwnPrompt:
    def __init__(self) -> None:
        self._leading: list[ChatMessage] = []
        self._places: list[int] = []
        self._given = 0

    def before_turn(self, messages: Sequence[ChatMessage]) -> None:
        """Note what the agent is given for a turn that begins."""
        self._given = len(_leading(messages))

    def added(self, live: Sequence[ChatMessage]) -> None:
        """Note the messages of a turn that begins, with the prompt that the agent has put in front of them."""
        self._leading = _leading(live)
        self._places = list(range(len(self._leading) - self._given))

    def restored(self, messages: Sequence[ChatMessage], counters: Mapping[str, Any]) -> None:
        """Note the messages of a checkpoint, and where it has the prompt."""
        self._leading = _leading(messages)
        places = counters.get(PROMPT_PLACES, _usual(self._leading))
        self._places = [place for place in places if place < len(self._leading)]

    def without(self, messages: Sequence[ChatMessage]) -> list[ChatMessage]:
        """The messages that were restored, without the prompt."""
        return [message for place, message in enumerate(messages) if place not in self._places]

    def in_counters(self, live: Sequence[ChatMessage]) -> dict[str, Any]:
        """What a checkpoint of these messages has to say of the prompt's places; nothing where they are the usual."""
        leading = _leading(live)
        if leading != self._leading:
            self._follow(leading)
        return {} if self._places == _usual(leading) else {PROMPT_PLACES: list(self._places)}

    def _follow(self, leading: list[ChatMessage]) -> None:
        """Find the prompt again. A message of it that is gone was rewritten, where a new message stands there."""
        own = [self._leading[place] for place in self._places]
        others = [message for place, message in enumerate(self._leading) if place not in self._places]
        unchanged = [place for place, message in enumerate(leading) if message in own]
        new = [place for place, message in enumerate(leading) if message not in own and message not in others]
        missing = max(len(own) - len(unchanged), 0)
        self._places = sorted([*unchanged[: len(own)], *new[:missing]])
        self._leading = leading


def _leading(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    return list(takewhile(lambda message: message.role == ChatRole.SYSTEM, messages))


def _usual(leading: Sequence[ChatMessage]) -> list[int]:
    """One message at the front, if there is a system message at all: checkpoints of older versions say nothing."""
    return [0] if leading else []
