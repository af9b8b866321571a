"""What a page that listens is told now and then, besides that there is news: how its session stands.

From the number of its last change a page sees whether it has missed news, and from who else has the session open,
whether its line that names them is right.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from uuid import UUID

from django.db import DatabaseError, connections

from sessions_app.models import Session
from sessions_app.watching import open_pages

# A session, and the user who has a page of it open.
Page = tuple[UUID, int]


@dataclass(frozen=True, slots=True)
class Standing:
    """``change`` is None where it is not known, ``others`` who else has it open, as `open_pages.as_text` writes it."""

    change: int | None
    others: str


def of_pages(pages: Collection[Page]) -> Mapping[Page, Standing]:
    """How the session of each page stands. The users count as having these open from now on.

    One query, by a connection that this gives back: it is called in threads that wait for long.
    """
    others = open_pages.still_open(pages)
    changes = _changes({session_id for session_id, _ in pages})
    return {page: Standing(changes.get(page[0]), open_pages.as_text(others[page])) for page in pages}


def _changes(session_ids: Collection[UUID]) -> dict[UUID, int]:
    """Of no session while the database is unavailable."""
    try:
        return dict(Session.objects.filter(pk__in=session_ids).values_list("pk", "change"))
    except DatabaseError:
        return {}
    finally:
        connections.close_all()
