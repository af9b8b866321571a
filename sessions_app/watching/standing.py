"""What a listening page is told now and then, in addition to news: the current state of its session.

From the number of its last change, and whether its lease has run out, a page sees whether it has missed news; from who
else has the session open, whether its line that names them is right.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from uuid import UUID

from django.db import Error
from django.utils import timezone

from sessions_app.models import Session
from sessions_app.watching import open_pages

# A session, and the user who has a page of it open.
Page = tuple[UUID, int]


@dataclass(frozen=True, slots=True)
class Standing:
    """
    change: None where it is not known: there is no such session, or the database is unavailable.
    is_lost: its lease has run out, and nobody has taken it since.
    others: who else has it open, as `open_pages.as_text` writes it.
    """

    change: int | None
    is_lost: bool
    others: str


def of_pages(pages: Collection[Page]) -> Mapping[Page, Standing]:
    """How the session of each page stands, by one query. The users count as having these open from now on."""
    others = open_pages.still_open(pages)
    sessions = _sessions({session_id for session_id, _ in pages})
    stands = {}
    for page in pages:
        change, is_lost = sessions.get(page[0], (None, False))
        stands[page] = Standing(change, is_lost, open_pages.as_text(others[page]))
    return stands


def _sessions(session_ids: Collection[UUID]) -> dict[UUID, tuple[int, bool]]:
    """The last change of each, and whether it is lost."""
    now = timezone.now()
    try:
        rows = Session.objects.filter(pk__in=session_ids).values_list("pk", "change", "lease_expires_at")
        return {pk: (change, lease is not None and lease < now) for pk, change, lease in rows}
    except Error:
        return {}
