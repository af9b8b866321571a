"""The model of the examples: a script, so that they run without a key. With OPENAI_API_KEY it is a real one."""

import os
from collections.abc import Callable, Sequence
from typing import Any

from haystack.components.generators.chat import MockChatGenerator, OpenAIChatGenerator
from haystack.dataclasses import ChatMessage, ToolCall

Reply = Callable[[Sequence[ChatMessage]], ChatMessage]


def chat_model(reply: Reply) -> Any:
    """A chat generator for `Agent(chat_generator=...)`.

    :param reply: What the scripted model answers to a conversation. It depends on the messages alone, as a real
        model's answer does: any process can continue a conversation.
    """
    if os.environ.get("OPENAI_API_KEY"):
        return OpenAIChatGenerator()
    return MockChatGenerator(response_fn=lambda messages, tools=None: reply(messages))


def say(text: str) -> ChatMessage:
    return ChatMessage.from_assistant(text)


def call(tool: str, **arguments: Any) -> ChatMessage:
    """A reply that asks for one tool call. Haystack fills in its id."""
    return ChatMessage.from_assistant(f"I use {tool}.", tool_calls=[ToolCall(tool, arguments)])


def last_question(messages: Sequence[ChatMessage]) -> str:
    return next((message.text or "" for message in reversed(messages) if message.is_from("user")), "")


def results(messages: Sequence[ChatMessage]) -> dict[str, str]:
    """The last result of each tool, as the model saw it."""
    answers = [answer for message in messages for answer in message.tool_call_results]
    return {answer.origin.tool_name: str(answer.result) for answer in answers}


def results_of_this_turn(messages: Sequence[ChatMessage]) -> dict[str, str]:
    """Those since the user last spoke."""
    asked = max((index for index, message in enumerate(messages) if message.is_from("user")), default=0)
    return results(messages[asked:])
