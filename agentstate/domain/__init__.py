"""What an agent's state is: phases, messages, memory, and their forms for a model and for a disk.

Pure Python: it knows nothing of Django, Celery, Haystack or a database, and everything may use it.
"""

from agentstate.domain.checkpoints import load_checkpoint, save_checkpoint
from agentstate.domain.codec import UnreadableState, decode_state, encode_state
from agentstate.domain.frozen import Clock, FrozenDict, freeze, thaw, utc_now
from agentstate.domain.history import (
    ChatMessage,
    InconsistentHistory,
    TokenCounter,
    approximate_tokens,
    history_to_messages,
    truncate_history,
)
from agentstate.domain.messages import Message, Role, ToolCall
from agentstate.domain.phases import TRANSITIONS, AgentPhase, IllegalTransition, allowed, check
from agentstate.domain.state import AgentState, WorkingMemory, check_session_id

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
    "freeze",
    "history_to_messages",
    "load_checkpoint",
    "save_checkpoint",
    "thaw",
    "truncate_history",
    "utc_now",
]
