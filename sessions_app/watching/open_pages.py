"""Who has a page of a session open.

A page says so when it is drawn and every 20 seconds; within a minute after the last time it counts no more.
"""

from uuid import UUID

from sessions_app.watching.buffer import buffer

# A page may miss one of its polls and still counts.
OPEN_SECONDS = 50


def opened(session_id: UUID, user_id: int) -> None:
    """The user has a page of the session open."""
    buffer().mark(_key(session_id), str(user_id), seconds=OPEN_SECONDS)


def users(session_id: UUID) -> set[int]:
    """The ids of the users who have a page of the session open."""
    return {int(member) for member in buffer().marked(_key(session_id)) if member.isdecimal()}


def is_open(session_id: UUID) -> bool:
    return bool(buffer().marked(_key(session_id)))


def _key(session_id: UUID) -> str:
    return f"agentstate:open:{session_id}"
