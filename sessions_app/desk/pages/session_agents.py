"""The registered agents of the sessions that a page lists: read at once, and named as people know them."""

from collections.abc import Collection

from sessions_app.models import RegisteredAgent, Session


def load_agents(sessions: Collection[Session]) -> None:
    """Read `Session.registered_agent` of all of them. One query."""
    agents = RegisteredAgent.objects.in_bulk({session.agent for session in sessions}, field_name="key")
    for session in sessions:
        session.registered_agent = agents.get(session.agent)


def agent_title(session: Session) -> str:
    """The title of its agent, or the key of one that no worker has published."""
    agent = session.registered_agent
    return agent.title if agent else session.agent
