"""Whole messages that a session is started with: checked, since a worker builds a Haystack message from each."""

from collections.abc import Sequence
from typing import Any

from agentstate.durable.state.tags import as_plain_data
from sessions_app.access import typed
from sessions_app.access.errors import Invalid
from sessions_app.models import Message

Json = Any
# A picture or a file is part of its message.
MOST_BYTES = 5_000_000
_PARTS = {
    "text": str,
    "tool_call": dict,
    "tool_call_result": dict,
    "image": dict,
    "file": dict,
    "reasoning": dict,
}


def to_store(
    messages: Sequence[dict[str, Json]], *, prompt_follows: bool = False
) -> list[tuple[str, dict[str, Json]]]:
    """The text and the body of each, to be stored.

    :param prompt_follows: The agent has a prompt of its own, which is what it answers.
    :raises Invalid: for one that is not as ``ChatMessage.to_dict()`` writes it, or is too long, and for a last one
        that is not the user's.
    """
    stored = []
    for number, message in enumerate(messages, 1):
        what = f"Message {number}"
        if not _is_message(message):
            raise Invalid(f"{what} is not a message as ChatMessage.to_dict() writes it.")
        typed.check_json(what, message, most_bytes=MOST_BYTES)
        texts = [part["text"] for part in message["content"] if "text" in part]
        stored.append((texts[0] if texts else "", as_plain_data(message)))
    if stored and not prompt_follows and stored[-1][1]["role"] != Message.Role.USER:
        raise Invalid("The last message must be the user's: the agent answers it.")
    return stored


def _is_message(message: Json) -> bool:
    if not isinstance(message, dict) or message.get("role") not in Message.Role.values:
        return False
    content, meta = message.get("content"), message.get("meta", {})
    return (
        isinstance(meta, dict) and isinstance(content, list) and bool(content) and all(map(_is_part, content))
    )


def _is_part(part: Json) -> bool:
    return (
        isinstance(part, dict)
        and len(part) == 1
        and all(name in _PARTS and isinstance(value, _PARTS[name]) for name, value in part.items())
    )
