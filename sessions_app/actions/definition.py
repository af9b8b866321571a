"""Continuing with an agent whose definition has changed since the session last ran: a person who was told decides.

A worker does not run such a session; it waits for a person, see `agentstate.durable.run`. What a person does to let it
continue accepts the definition that the workers have published, and no later one: the page that said so sends it along.
"""

from sessions_app.access.errors import DefinitionNotShown
from sessions_app.models import Session, WaitingFor


def accept_definition(session: Session, shown: str) -> None:
    """Let the locked session run with its agent's new definition, if that is the one that the person was shown.

    Nothing happens if the definition has not changed, or if none was shown: the session then waits with the reason.

    :param shown: The definition of which the page said that it is new, "" if the page said nothing of it.
    :raises DefinitionNotShown: if it is not the present one.
    """
    if session.new_definition and shown:
        require_shown_definition(session, shown)


def require_shown_definition(session: Session, shown: str) -> None:
    """The same for what lets a call or the session run.

    :raises DefinitionNotShown: if the definition has changed, and another one or none was shown.
    """
    if not session.new_definition:
        return
    if shown != session.new_definition:
        raise DefinitionNotShown(
            "The agent has changed since this page was loaded. Check it again, then decide."
        )
    session.definition = session.new_definition


def accept_present_definition(session: Session) -> None:
    """Let the locked session run with the definition that the workers have, for who resumes it.

    On the desk that is the definition that was shown; who resumes it elsewhere is shown none.
    """
    if session.new_definition:
        session.definition = session.new_definition
    elif session.waiting_for == WaitingFor.CHANGED:
        # A worker refused, although the published definition is the session's: any worker's will do.
        session.definition = ""
