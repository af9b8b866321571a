"""The registered agents of the sessions that a page lists: read at once, and named as people know them."""

from collections.abc import Collection

from django.db.models import QuerySet

from sessions_app.models import RegisteredAgent, Session
from sessions_app.models.compiled import compiled


def load_agents(sessions: Collection[Session]) -> None:
    """Read `Session.registered_agent` of all of them. One query."""
    agents = {agent.key: agent for agent in _agents(tuple({session.agent for session in sessions}))}
    for session in sessions:
        session.registered_agent = agents.get(session.agent)


@compiled
def _agents(keys: tuple[str, ...]) -> QuerySet[RegisteredAgent]:
    return RegisteredAgent.objects.filter(key__in=keys).order_by()


def agent_title(session: Session) -> str:
    """The title of its agent, or the key of one that no worker has published."""
    agent = session.registered_agent
    return agent.title if agent else session.agent
