"""A value model of an agent's state: `AgentState.of` reads a durable session, and every run uses the state machine.

It also has messages, working memory, their form for a chat API, and a lossless file format. A durable run keeps its
state in Haystack's State and in a journal instead, and in it the same working memory. Pure Python: it imports neither
Django, Celery, Haystack nor a database, and everything may import it.
"""

from agentstate.domain.checkpoints import load_checkpoint, save_checkpoint
from agentstate.domain.codec import UnreadableState, decode_state, encode_state
from agentstate.domain.frozen import Clock, FrozenDict, freeze, thaw, utc_now
from agentstate.domain.history import (
    ChatMessage,
    InconsistentHistory,
    NotForChatApi,
    TokenCounter,
    approximate_tokens,
    exact_tokens,
    history_to_messages,
    truncate_history,
)
from agentstate.domain.messages import Message, Role, ToolCall
from agentstate.domain.phases import TRANSITIONS, AgentPhase, IllegalTransition, allowed, check
from agentstate.domain.state import AgentState, check_session_id
from agentstate.domain.working_memory import WorkingMemory

__all__ = [
    "TRANSITIONS",
    "AgentPhase",
    "AgentState",
    "ChatMessage",
    "Clock",
    "FrozenDict",
    "IllegalTransition",
    "InconsistentHistory",
    "Message",
    "NotForChatApi",
    "Role",
    "TokenCounter",
    "ToolCall",
    "UnreadableState",
    "WorkingMemory",
    "allowed",
    "approximate_tokens",
    "check",
    "check_session_id",
    "decode_state",
    "encode_state",
    "exact_tokens",
    "freeze",
    "history_to_messages",
    "load_checkpoint",
    "save_checkpoint",
    "thaw",
    "truncate_history",
    "utc_now",
]
