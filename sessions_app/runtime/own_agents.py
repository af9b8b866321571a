"""Which sessions this process runs, and which it leaves to other workers.

Workers may register different agents, and different definitions of one while they are replaced one by one. While
another worker that is online has the agent, a worker does not claim

- a session whose agent it does not register, or cannot build,
- a session that is to go on with the published definition of its agent, for instance since a person has accepted it,
  if the agent is another one here and is that one there.

The session stays due, and the next sweep sends its wake-up again, which the other worker may get. If no worker that is
online has the agent, any worker claims the session and lets it wait for a person.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from django.db.models import Exists, OuterRef

from agentstate.durable.registry import AgentError, Registration, registry
from sessions_app.models import RegisteredAgent, had_by_workers
from sessions_app.runtime.agents import can_run, imported_once, note_broken, runnable

if TYPE_CHECKING:
    from agentstate.durable.agent import WrappedAgent

# The definitions of the agents that were built by now, which takes a while. A test registers an agent again.
_built: dict[str, tuple[Registration, str]] = {}


@dataclass(frozen=True, slots=True)
class OwnAgents:
    """The keys of the agents that this process registers and can build, as far as that is known, and the definitions of
    those that it has built so far.
    """

    keys: list[str]
    definitions: list[str]

    def leaves(self, agent: str, definition: str, now: datetime) -> bool:
        """Whether a session of this agent is left to another worker. One query, unless the agent is the one here.

        :param definition: That of the session, "" if it may go on with any.
        """
        others = had_by_workers(now).filter(agent=agent)
        if agent not in self.keys:
            return others.exists()
        if not definition or definition in self.definitions or _is_here(agent, definition):
            return False
        published = RegisteredAgent.objects.filter(key=OuterRef("agent"), definition=OuterRef("definition"))
        return others.filter(Exists(published), definition=definition).exists()


def own_agents() -> OwnAgents:
    """Those of this process, as of now. The first call imports their modules."""
    imported_once()
    registered = {
        registration.key: registration for registration in registry.all() if can_run(registration.key)
    }
    definitions = [
        definition
        for key, (registration, definition) in [*_built.items()]
        if registered.get(key) is registration
    ]
    return OwnAgents([*registered], definitions)


def built(key: str) -> "WrappedAgent":
    """The registered agent, built in this process.

    :raises AgentError: saying what to do, if it is not available.
    """
    from agentstate.durable.agent import build

    try:
        registration = runnable(key)
        durable = build(registration)
    except AgentError as error:
        note_broken(key, str(error))
        raise
    note_broken(key, "")
    _built[key] = registration, durable.definition
    return durable


def _is_here(agent: str, definition: str) -> bool:
    try:
        return built(agent).definition == definition
    except AgentError:
        return False
