"""What an action does to a session in its current state, as sentences for its dialog, and what must happen afterwards.

Each reads the session that it gets and changes nothing. Which action has which explanation is declared in
`sessions_app.action_list`.
"""

from sessions_app.access.availability import agent_cannot_run
from sessions_app.models import Phase, Session, Status


def nothing(session: Session) -> str:
    return ""


def pause(session: Session) -> str:
    when = "when the current call ends" if session.status == Status.RUNNING else "before its next step"
    return f"It stops {when}. Nothing is lost; you can resume it from there."


def cancel(session: Session) -> str:
    return "It ends for good: only a rewind or a fork continues it. A running call is not interrupted."


def release(session: Session) -> str:
    return (
        f"From now on, nothing that worker {session.worker} writes is accepted, and another worker may continue. "
        "A running call is not interrupted; unless its tool is idempotent, it is then in doubt."
    )


def undo(session: Session) -> str:
    branch = session.branch
    if branch is None or branch.undo_to is None:
        return ""
    return "The session returns to how it was before the last rewind or repair. If it was running then, it is paused."


def repair(session: Session) -> str:
    if session.status == Status.IDLE and session.phase == Phase.DONE:
        return "The earlier history stays readable, and you can undo this."
    return (
        "The earlier history stays readable. The session is paused, or waits if there are calls to decide. "
        "You can undo this."
    )


def erase_entry(session: Session) -> str:
    return (
        "The entry is deleted for good. The audit trail says that an entry was erased, not what it "
        "said. The history of the session still shows the call that remembered it."
    )


def continues_when(session: Session) -> str:
    """What must happen before the session continues, "" if it continues at once."""
    if session.status == Status.WAITING:
        return "the other calls are decided"
    if session.status == Status.PAUSED:
        return "the session is resumed"
    if agent_cannot_run(session):
        return "its agent can run again and the session is resumed"
    return "the session is resumed with the agent's new definition" if session.new_definition else ""
