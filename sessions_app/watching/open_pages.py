"""Who has a page of a session open.

A page says so when it is drawn and every 20 seconds, or its stream does so for it; within a minute after the last time
it counts no more.
"""

from collections.abc import Collection
from uuid import UUID

from sessions_app.watching.buffer import buffer

# How often it is said that a page is open.
SAY_SECONDS = 20
# A page may miss one of its polls and still counts.
OPEN_SECONDS = 50


def opened(session_id: UUID, user_id: int) -> None:
    """The user has a page of the session open."""
    buffer().mark([(_key(session_id), str(user_id))], seconds=OPEN_SECONDS)


def users(session_id: UUID) -> set[int]:
    """The ids of the users who have a page of the session open."""
    return _ids(*buffer().marked(_key(session_id)))


def is_open(session_id: UUID) -> bool:
    return bool(users(session_id))


def still_open(pages: Collection[tuple[UUID, int]]) -> dict[tuple[UUID, int], set[int]]:
    """The user has the session open, of each page; returns the ids of the others who have, of each."""
    if not pages:
        return {}
    buffer().mark([(_key(session_id), str(user_id)) for session_id, user_id in pages], seconds=OPEN_SECONDS)
    sessions = sorted({session_id for session_id, _ in pages})
    of_session = dict(zip(sessions, buffer().marked(*map(_key, sessions)), strict=True))
    return {(session_id, user_id): _ids(of_session[session_id]) - {user_id} for session_id, user_id in pages}


def as_text(user_ids: Collection[int]) -> str:
    """The ids as a page has them: the same for the same users."""
    return "-".join(map(str, sorted(user_ids)))


def _ids(members: Collection[str]) -> set[int]:
    return {int(member) for member in members if member.isdecimal()}


def _key(session_id: UUID) -> str:
    return f"agentstate:open:{session_id}"
