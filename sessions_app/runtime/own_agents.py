"""Which sessions this process runs, and which it leaves to other workers.

Workers may register different agents. A worker does not claim a session whose agent it does not register while another
worker that is online has that agent: the session stays due, and the next sweep sends its wake-up again, which the other
worker may get. If no worker that is online has the agent, any worker claims the session and lets it wait for a person.
"""

from dataclasses import dataclass
from datetime import datetime

from agentstate.durable.registry import registry
from sessions_app.models import had_by_workers
from sessions_app.runtime.agents import imported_once


@dataclass(frozen=True, slots=True)
class OwnAgents:
    """The keys of the agents that this process registers."""

    keys: list[str]

    def leaves(self, agent: str, now: datetime) -> bool:
        """Whether a session of this agent is left to another worker. One query, unless the agent is registered here."""
        return agent not in self.keys and had_by_workers(now).filter(agent=agent).exists()


def own_agents() -> OwnAgents:
    """Those of this process, as of now. The first call imports their modules."""
    imported_once()
    return OwnAgents([registration.key for registration in registry.all()])
