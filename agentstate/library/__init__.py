"""Durable agents without the desk: one class with which a script runs a session, and what its runs return."""

from agentstate.library.agent import DurableAgent
from agentstate.library.nesting import SessionInUse
from agentstate.library.outcomes import (
    Answered,
    AtBreakpoint,
    Failed,
    PendingCall,
    RetryAt,
    TurnUnfinished,
    Waiting,
)

__all__ = [
    "Answered",
    "AtBreakpoint",
    "DurableAgent",
    "Failed",
    "PendingCall",
    "RetryAt",
    "SessionInUse",
    "TurnUnfinished",
    "Waiting",
]
