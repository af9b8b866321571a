"""Who else has a page of the session open, in one line."""

from dataclasses import dataclass
from uuid import UUID

from django.contrib.auth.models import User

from sessions_app.desk.pages.session.context import SessionContext
from sessions_app.watching import open_pages

MOST_NAMES = 4


@dataclass(frozen=True, slots=True)
class AlsoOpen:
    """
    names: those of the other people, separated by commas; "" where nobody else has the session open.
    shown: what the page sends with its next question (`is_shown`), and compares with what its stream tells it.
    """

    names: str = ""
    shown: str = ""


def also_open(context: SessionContext) -> AlsoOpen:
    """One query if another person has it open. From now on the person of the context counts as having it open, too."""
    user = context.actor.user
    if user is None:
        return AlsoOpen()
    open_pages.opened(context.session.pk, user.pk)
    others = _others(context.session.pk, user.pk)
    if not others:
        return AlsoOpen()
    people = User.objects.filter(pk__in=others, is_active=True)
    names = sorted(context.mask.text(person.get_full_name() or person.get_username()) for person in people)
    more = len(names) - MOST_NAMES
    text = ", ".join([*names[:MOST_NAMES], *([f"{more} more"] if more > 0 else [])])
    return AlsoOpen(text, open_pages.as_text(others))


def is_shown(session_id: UUID, user_id: int, shown: str) -> bool:
    """Whether the line on the page of this user is still right. Then the user goes on to count as having it open.

    No query. Names that have changed meanwhile are not noticed.
    """
    if open_pages.as_text(_others(session_id, user_id)) != shown:
        return False
    open_pages.opened(session_id, user_id)
    return True


def _others(session_id: UUID, user_id: int) -> set[int]:
    return open_pages.users(session_id) - {user_id}
