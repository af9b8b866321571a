"""AgentState: durable Haystack agents, and a desk on which staff inspect and resume their sessions.

This is the public surface for agent authors. Importing it pulls in neither Django, Celery nor Haystack.
"""

from agentstate.durable.breakpoints import Breakpoint
from agentstate.durable.idempotency import idempotency_key, use_idempotency_key
from agentstate.durable.policy import ToolPolicy
from agentstate.durable.registry import AsyncOnly, agent
from agentstate.durable.semantic_cache import SemanticCache
from agentstate.library import (
    Answered,
    AtBreakpoint,
    DurableAgent,
    Failed,
    PendingCall,
    RetryAt,
    SessionInUse,
    TurnUnfinished,
    Waiting,
)

__all__ = [
    "Answered",
    "AsyncOnly",
    "AtBreakpoint",
    "Breakpoint",
    "DurableAgent",
    "Failed",
    "PendingCall",
    "RetryAt",
    "SemanticCache",
    "SessionInUse",
    "ToolPolicy",
    "TurnUnfinished",
    "Waiting",
    "agent",
    "idempotency_key",
    "use_idempotency_key",
]
