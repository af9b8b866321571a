"""What the scripted model reads from a conversation: what the user wants, and what the tools have answered."""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from haystack.dataclasses import ChatMessage, ToolCall

_NUMBER = re.compile(r"\b(CLM|POL)[- ]?(\d{3,6})\b", re.IGNORECASE)
_REPLACES = re.compile(r"\b(instead|never mind|forget (it|that))\b", re.IGNORECASE)


@dataclass(frozen=True)
class WantedCall:
    """A tool call that a script wants. One with an `effect` is never made twice within a request."""

    tool: str
    arguments: dict[str, Any] = field(default_factory=dict)
    effect: bool = False


@dataclass(frozen=True)
class Answer:
    """What a tool answered: its JSON value, or the text that a person entered instead."""

    value: Any
    error: bool = False

    @property
    def record(self) -> dict[str, Any] | None:
        return self.value if isinstance(self.value, dict) and not self.error else None

    @property
    def text(self) -> str:
        text = self.value if isinstance(self.value, str) else json.dumps(self.value)
        return text.rpartition(" Error: ")[2].strip()


@dataclass(frozen=True)
class Request:
    """The messages and tool calls since the last final answer: one that is not a question to the user.

    :param text: What the user wants: all of the messages, unless the last one replaces the others.
    :param latest: The last of these messages.
    :param answered: The calls of this request with their answers, in order.
    :param earlier: The same of all requests before.
    :param mentioned: Claim and policy numbers, in the order in which the conversation mentions them.
    """

    text: str
    latest: str
    answered: tuple[tuple[ToolCall, Answer], ...]
    earlier: tuple[tuple[ToolCall, Answer], ...]
    mentioned: tuple[str, ...]
    tools: frozenset[str]

    @classmethod
    def read(cls, messages: Sequence[ChatMessage], tools: Iterable[str]) -> "Request":
        start = max(
            (index + 1 for index, message in enumerate(messages) if _is_final_answer(message)), default=0
        )
        texts = [message.text or "" for message in messages[start:] if message.is_from("user")]
        latest = texts[-1] if texts else ""
        return cls(
            text=latest if _REPLACES.search(latest) else "\n".join(texts),
            latest=latest,
            answered=_answers(messages[start:]),
            earlier=_answers(messages[:start]),
            mentioned=tuple(number for message in messages for number in _mentioned(message)),
            tools=frozenset(tools),
        )

    @property
    def claims(self) -> list[str]:
        """The claims that the request names, each once."""
        return [number for number in numbers_in(self.text) if number.startswith("CLM")]

    @property
    def policies(self) -> list[str]:
        return [number for number in numbers_in(self.text) if number.startswith("POL")]

    def last(self, prefix: str) -> str:
        """The number with the prefix that the conversation mentions last, or ""."""
        return next((number for number in reversed(self.mentioned) if number.startswith(prefix)), "")

    def says(self, pattern: str) -> bool:
        return re.search(pattern, self.text, re.IGNORECASE) is not None

    def answer(self, wanted: WantedCall, nth: int) -> Answer | None:
        """The answer to a call, None if it was not made yet.

        A call with an effect is the `nth` of its tool, from 0, since a person may have edited its arguments.
        """
        if wanted.effect:
            answers = [answer for call, answer in self.answered if call.tool_name == wanted.tool]
            return answers[nth] if nth < len(answers) else None
        for call, answer in reversed(self.answered):
            if call.tool_name == wanted.tool and call.arguments == wanted.arguments:
                return answer
        return None

    def done_before(self, tool: str, **arguments: Any) -> dict[str, Any] | None:
        """The record that such a call returned in an earlier request of this conversation."""
        for call, answer in reversed(self.earlier):
            if call.tool_name == tool and call.arguments.items() >= arguments.items() and answer.record:
                return answer.record
        return None


def _is_final_answer(message: ChatMessage) -> bool:
    return message.is_from("assistant") and not message.tool_calls and not (message.text or "").endswith("?")


def numbers_in(text: str) -> list[str]:
    """The claim and policy numbers of a text, normalised, in order, each once."""
    return list(dict.fromkeys(f"{kind.upper()}-{digits}" for kind, digits in _NUMBER.findall(text)))


def _mentioned(message: ChatMessage) -> list[str]:
    if message.is_from("user") or message.is_from("system"):
        return numbers_in(message.text or "")
    numbers = [number for call in message.tool_calls for number in numbers_in(json.dumps(call.arguments))]
    for result in message.tool_call_results:
        if result.origin.tool_name == "look_up_claim" and not result.error:
            numbers += numbers_in(str(_value(result.result)))
    return numbers


def _answers(messages: Sequence[ChatMessage]) -> tuple[tuple[ToolCall, Answer], ...]:
    return tuple(
        (result.origin, Answer(_value(result.result), result.error))
        for message in messages
        for result in message.tool_call_results
    )


def _value(result: Any) -> Any:
    try:
        return json.loads(result)
    except (TypeError, ValueError):
        return result if isinstance(result, str) else str(result)
