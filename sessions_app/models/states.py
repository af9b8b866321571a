"""The states of a session: what its agent does, what the system does with it, and what a person has to do.

The values are stored, so a member may be added but never renamed or removed.
"""

from django.db import models

from agentstate.domain.phases import AgentPhase
from agentstate.durable.run_end import requested_end
from agentstate.names import Need, SessionStatus
from sessions_app.models.enums import EventKind


class Phase(models.TextChoices):
    """What the agent is doing: the state machine of ``agentstate.domain.phases``."""

    IDLE = AgentPhase.IDLE.value, "idle"
    PLANNING = AgentPhase.PLANNING.value, "planning"
    EXECUTING = AgentPhase.EXECUTING.value, "executing"
    REFLECTING = AgentPhase.REFLECTING.value, "reflecting"
    DONE = AgentPhase.DONE.value, "done"
    ERROR = AgentPhase.ERROR.value, "error"


class Status(models.TextChoices):
    """What the system is doing with the session."""

    IDLE = SessionStatus.IDLE.value, "idle"
    QUEUED = SessionStatus.QUEUED.value, "queued"
    RUNNING = SessionStatus.RUNNING.value, "running"
    WAITING = SessionStatus.WAITING.value, "waiting"
    PAUSED = SessionStatus.PAUSED.value, "paused"
    CANCELLED = SessionStatus.CANCELLED.value, "cancelled"


# A turn is not over, and a person decides how it goes on: calls of the session may wait for that.
STOPPED = (Status.WAITING, Status.PAUSED)


class WaitingFor(models.TextChoices):
    """What a waiting session needs from a person."""

    APPROVAL = Need.APPROVAL.value, "approval"
    DOUBT = Need.DOUBT.value, "a decision on a call in doubt"
    RETRIES = Need.RETRIES.value, "review: all retries failed"
    CHANGED = Need.CHANGED.value, "review: the agent is missing or has changed"


class StopRequest(models.TextChoices):
    """What a person has requested of a running session; its worker obeys at its next commit."""

    PAUSE = "pause", "pause"
    CANCEL = "cancel", "cancel"

    @property
    def status(self) -> Status:
        """The status that the session gets."""
        return Status(requested_end(self.value).status)

    @property
    def event(self) -> EventKind:
        """The event that says that the session has stopped."""
        return EventKind(requested_end(self.value).event)
