"""Whole messages that a session is started with: checked, since a worker builds a Haystack message from each."""

from collections.abc import Sequence
from typing import Any

from agentstate.durable.state.tags import as_plain_data
from sessions_app.access import typed
from sessions_app.access.errors import Invalid
from sessions_app.access.message_parts import why_not_built
from sessions_app.models import Message

Json = Any
# A picture or a file is part of its message.
MOST_BYTES = 5_000_000


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
        if why := why_not_built(message, Message.Role.values):
            raise Invalid(f"{what} is not a message as ChatMessage.to_dict() writes it: {why}.")
        typed.check_json(what, message, most_bytes=MOST_BYTES)
        texts = [part["text"] for part in message["content"] if "text" in part]
        stored.append((texts[0] if texts else "", as_plain_data(message)))
    if stored and not prompt_follows and stored[-1][1]["role"] != Message.Role.USER:
        raise Invalid("The last message must be the user's: the agent answers it.")
    return stored
