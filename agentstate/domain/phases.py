"""The state machine: the phases of an agent, and which may follow which.

This table is the only definition of the state machine: the domain, the durable runs and the database constraint all use
it. A forbidden change raises an exception, never an `assert`: it is refused under `python -O` too.
"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType


class AgentPhase(StrEnum):
    IDLE = "idle"
    PLANNING = "planning"
    EXECUTING = "executing"
    REFLECTING = "reflecting"
    DONE = "done"
    ERROR = "error"


TRANSITIONS: Mapping[AgentPhase, frozenset[AgentPhase]] = MappingProxyType(
    {
        AgentPhase.IDLE: frozenset({AgentPhase.PLANNING}),
        AgentPhase.PLANNING: frozenset({AgentPhase.EXECUTING, AgentPhase.DONE, AgentPhase.ERROR}),
        AgentPhase.EXECUTING: frozenset({AgentPhase.REFLECTING, AgentPhase.ERROR}),
        AgentPhase.REFLECTING: frozenset({AgentPhase.PLANNING, AgentPhase.DONE, AgentPhase.ERROR}),
        AgentPhase.DONE: frozenset({AgentPhase.PLANNING}),
        AgentPhase.ERROR: frozenset({AgentPhase.PLANNING}),
    }
)


class IllegalTransition(ValueError):
    """A change of phase that the state machine forbids; nothing was changed."""

    def __init__(self, source: AgentPhase, target: AgentPhase) -> None:
        super().__init__(source, target)
        self.source = AgentPhase(source)
        self.target = AgentPhase(target)
        self.allowed = allowed(source)

    def __str__(self) -> str:
        names = " or ".join(phase.value for phase in AgentPhase if phase in self.allowed)
        return f"An agent cannot go from {self.source} to {self.target}; {self.source} allows {names}."


def allowed(source: AgentPhase) -> frozenset[AgentPhase]:
    """The phases that may follow `source`."""
    return TRANSITIONS[AgentPhase(source)]


def check(source: AgentPhase, target: AgentPhase) -> None:
    """Return if an agent may go from `source` to `target`.

    :raises IllegalTransition: if it may not.
    """
    if target not in (TRANSITIONS.get(source) or allowed(source)):
        raise IllegalTransition(source, target)
