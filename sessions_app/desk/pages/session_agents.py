"""The registered agents of the sessions that a page lists: read at once, and named as people know them."""

from collections.abc import Collection, MutableMapping

from django.db.models import QuerySet

from sessions_app.models import RegisteredAgent, Session
from sessions_app.models.compiled import compiled

# By their keys; None for one that no worker has published.
KnownAgents = MutableMapping[str, RegisteredAgent | None]


def load_agents(sessions: Collection[Session], known: KnownAgents | None = None) -> None:
    """Read `Session.registered_agent` of all of them. One query, or none where all are known.

    :param known: Those that were read for this page before; what is read is added.
    """
    agents: KnownAgents = {} if known is None else known
    if unknown := {session.agent for session in sessions} - agents.keys():
        agents.update(dict.fromkeys(unknown))
        agents.update({agent.key: agent for agent in _agents(tuple(unknown))})
    for session in sessions:
        session.registered_agent = agents[session.agent]


@compiled
def _agents(keys: tuple[str, ...]) -> QuerySet[RegisteredAgent]:
    return RegisteredAgent.objects.filter(key__in=keys).order_by()


def agent_title(session: Session) -> str:
    """The title of its agent, or the key of one that no worker has published."""
    agent = session.registered_agent
    return agent.title if agent else session.agent
