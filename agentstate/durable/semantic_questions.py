"""Which questions to a model may be answered from the semantic cache, and which replies may be stored in it.

A question is the user's message that the model is to answer next. All else that the model is given must be equal to be
answered by the same reply: the agent's definition, the earlier messages, the tools and the generation kwargs; and of
the question its numbers and identifiers, which vectors hardly tell apart.
"""

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from haystack.dataclasses import ChatMessage
from haystack.tools.utils import flatten_tools_or_toolsets

from agentstate.domain.words import words_of
from agentstate.durable.embedding import MOST_CHARACTERS
from agentstate.durable.semantic_cache import Question, ReplyStore
from agentstate.durable.state.chat_messages import message_body, message_from
from agentstate.durable.state.encoding import encode_lossy

logger = logging.getLogger(__name__)
# A reply that was cut off or withheld would be so for everyone who asks the same.
_UNFINISHED = {"length", "content_filter"}


@dataclass(frozen=True, slots=True)
class Hit:
    """A reply from the cache, the id of the session that it comes from, and how similar the two questions are."""

    message: ChatMessage
    session: str
    similarity: float


class SemanticLookup:
    """The semantic cache as the model of one run uses it. Whatever fails counts as a miss."""

    def __init__(self, store: ReplyStore, definition: str) -> None:
        self._store = store
        self._definition = definition
        self._question: Question | None = None

    def find(self, messages: Sequence[ChatMessage], options: dict[str, Any]) -> Hit | None:
        """The reply to what the model is asked with these messages; None if the model has to be asked."""
        try:
            self._question = _question(messages, options, self._definition)
            cached = self._store.find(self._question) if self._question is not None else None
            return Hit(_without_usage(cached.body), cached.session, cached.similarity) if cached else None
        except Exception:
            self._question = None
            logger.warning("The semantic cache fails, so the model is asked.", exc_info=True)
            return None

    def store(self, replies: Sequence[ChatMessage], positions: Sequence[int]) -> None:
        """Store what the model replied, since `find` found nothing, if it may be used again.

        :param positions: Those of the replies in the session's history.
        """
        try:
            if self._question is not None and len(replies) == 1 and _may_be_used_again(replies[0]):
                self._store.store(self._question, positions[0])
        except Exception:
            logger.warning("A reply cannot be stored in the semantic cache.", exc_info=True)


def _without_usage(body: dict[str, Any]) -> ChatMessage:
    """The stored reply as a message that tells of no tokens: they were spent for the question before."""
    meta = {name: value for name, value in (body.get("meta") or {}).items() if name != "usage"}
    return message_from({**body, "meta": meta})


def _question(messages: Sequence[ChatMessage], options: dict[str, Any], definition: str) -> Question | None:
    """None for what is no question: the model continues after its tools, or is sent more than text."""
    last = messages[-1] if messages else None
    if last is None or not last.is_from("user") or len(last._content) != 1:
        return None
    text = last.text or ""
    # What is longer is not embedded as a whole: texts that differ at their ends would be the same.
    if not text.strip() or len(text) > MOST_CHARACTERS:
        return None
    earlier = [(message.is_from("system"), _said(message)) for message in messages[:-1]]
    numbers = sorted(word for word in words_of(text) if any(character.isdigit() for character in word))
    parts = {
        "definition": definition,
        "earlier": [body for _, body in earlier],
        "numbers": numbers,
        "tools": [tool.tool_spec for tool in flatten_tools_or_toolsets(options.get("tools"))],
        "generation_kwargs": encode_lossy(options.get("generation_kwargs") or {})[0],
    }
    key = sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()
    return Question(key, text, tuple(body for from_system, body in earlier if not from_system))


def _said(message: ChatMessage) -> dict[str, Any]:
    """The message without its metadata, such as how many tokens it took."""
    return {name: value for name, value in message_body(message).items() if name != "meta"}


def _may_be_used_again(reply: ChatMessage) -> bool:
    return (
        not reply.tool_calls
        and bool((reply.text or "").strip())
        and reply.meta.get("finish_reason") not in _UNFINISHED
    )
