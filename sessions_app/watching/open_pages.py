"""Who has a page of a session open.

A page says so when it is drawn and every 20 seconds; within a minute after the last time it counts no more. For a page
that listens its stream says so, as long as the page itself does every four minutes: a stream outlasts a page whose
network has vanished, by a quarter of an hour.
"""

from collections.abc import Callable, Collection
from uuid import UUID

from sessions_app.watching.buffer import buffer

# How often it is said that a page is open.
SAY_SECONDS = 20
# A page may miss one of its polls and still counts.
OPEN_SECONDS = 50
# So long after it was heard of a page its stream may say that it is open.
HEARD_SECONDS = 270


def opened(session_id: UUID, user_id: int) -> None:
    """The user has a page of the session open, and that has just been heard of it."""
    user = str(user_id)
    buffer().mark([(_key(session_id), user, OPEN_SECONDS), (_heard_key(session_id), user, HEARD_SECONDS)])


def users(session_id: UUID) -> set[int]:
    """The ids of the users who have a page of the session open."""
    return _users_of([session_id], _key)[session_id]


def is_open(session_id: UUID) -> bool:
    return bool(users(session_id))


def still_open(pages: Collection[tuple[UUID, int]]) -> dict[tuple[UUID, int], set[int]]:
    """The users' streams say that they have these sessions open; returns the ids of the others who have, of each."""
    if not pages:
        return {}
    sessions = sorted({session_id for session_id, _ in pages})
    heard_of = _users_of(sessions, _heard_key)
    open_now = [
        (_key(session_id), str(user_id), OPEN_SECONDS)
        for session_id, user_id in pages
        if user_id in heard_of[session_id]
    ]
    if open_now:
        buffer().mark(open_now)
    users_of = _users_of(sessions, _key)
    return {(session_id, user_id): users_of[session_id] - {user_id} for session_id, user_id in pages}


def as_text(user_ids: Collection[int]) -> str:
    """The ids as a page has them: the same for the same users."""
    return "-".join(map(str, sorted(user_ids)))


def _users_of(sessions: Collection[UUID], key: Callable[[UUID], str]) -> dict[UUID, set[int]]:
    """The ids in the set of each session that has such a key."""
    marked = zip(sessions, buffer().marked(*map(key, sessions)), strict=True)
    return {
        session_id: {int(member) for member in members if member.isdecimal()}
        for session_id, members in marked
    }


def _key(session_id: UUID) -> str:
    return f"agentstate:open:{session_id}"


def _heard_key(session_id: UUID) -> str:
    return f"agentstate:heard:{session_id}"
