"""A hook that truncates the conversation before the model is asked, by `agentstate.domain.truncate_history`.

    Agent(..., hooks={"before_llm": [TruncateHistory(max_tokens=6000)]})

The messages that are left out stay in the journal, and on the desk: the model does not see them any more.
"""

from collections.abc import Sequence
from typing import Any

from haystack.components.agents.state import State
from haystack.components.agents.state.state import replace_values
from haystack.core.serialization import default_from_dict, default_to_dict
from haystack.dataclasses import ChatMessage, FileContent, ImageContent, TextContent

from agentstate.domain.history import DEFAULT_BUDGET, TokenCounter, approximate_tokens, kept_messages


class TruncateHistory:
    """Keeps all system messages and the newest turns; never separates a tool's result from its call.

    :param count_tokens: The tokens of a text, such as `agentstate.domain.exact_tokens()`.
    """

    allowed_hook_points = ("before_llm",)

    def __init__(
        self,
        max_tokens: int = DEFAULT_BUDGET,
        *,
        keep_last_turns: int = 6,
        count_tokens: TokenCounter = approximate_tokens,
    ) -> None:
        self.max_tokens = max_tokens
        self.keep_last_turns = keep_last_turns
        self._count_tokens = count_tokens

    def run(self, state: State) -> None:
        messages: list[ChatMessage] = state.data["messages"]
        kept_indexes = kept_messages(
            [_chat_message(message) for message in messages],
            self.max_tokens,
            keep_last_turns=self.keep_last_turns,
            count_tokens=self._count_tokens,
        )
        if len(kept_indexes) < len(messages):
            rest = [message for index, message in enumerate(messages) if index in kept_indexes]
            state.set("messages", rest, handler_override=replace_values)

    def to_dict(self) -> dict[str, Any]:
        """Without `count_tokens`, which has no written form."""
        return default_to_dict(self, max_tokens=self.max_tokens, keep_last_turns=self.keep_last_turns)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "TruncateHistory":
        hook: TruncateHistory = default_from_dict(cls, data)
        return hook


def _parts(content: Sequence[Any]) -> list[dict[str, Any]]:
    """The texts, and that there are images and files."""
    texts = [{"type": "text", "text": part.text} for part in content if isinstance(part, TextContent)]
    return [*texts, *({"type": "file"} for part in content if isinstance(part, ImageContent | FileContent))]


def _chat_message(message: ChatMessage) -> dict[str, Any]:
    """What `kept_messages` reads of a message: role, text, calls, and the call that it answers."""
    result = message.tool_call_result
    chat: dict[str, Any] = {"role": message.role.value, "content": _parts(message._content)}
    if result is not None:
        content = result.result if isinstance(result.result, str) else _parts(result.result)
        chat |= {"content": content, "tool_call_id": result.origin.id or ""}
    if message.tool_calls:
        chat["tool_calls"] = [
            {"id": call.id or "", "function": {"name": call.tool_name, "arguments": str(call.arguments)}}
            for call in message.tool_calls
        ]
    return chat
