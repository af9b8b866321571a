"""In which order the inbox has its lines, and which of them are behind the cursor of a page."""

from datetime import datetime
from uuid import UUID

from django.db.models import Q

from sessions_app.access.typed import read_time
from sessions_app.finding.inbox_rows import APPROVAL, DOUBT, KINDS, STUCK

Key = int | UUID
# Of the last line of a page: since when, the place of its kind among `KINDS`, and its key.
Cursor = tuple[datetime, int, Key]
# By kind, the column by which its lines are ordered, and those of `inbox.Entry.version` and `inbox.Entry.expires_at`.
COLUMNS = {
    APPROVAL: ("asked_at", "session__version", "expires_at"),
    DOUBT: ("started_at", "branch__session__version"),
    STUCK: ("updated_at", "version"),
}


def read_cursor(text: str) -> Cursor | None:
    """What `inbox.Entry.cursor` names; None for anything else."""
    time_text, _, rest = text.partition("_")
    kind, _, pk = rest.partition("_")
    time = read_time(time_text)
    if time is None or kind not in KINDS:
        return None
    try:
        return time, KINDS.index(kind), int(pk) if kind in (APPROVAL, DOUBT) and len(pk) < 19 else UUID(pk)
    except ValueError:
        return None


def place(cursor: Cursor | None, kind: str, *, oldest_first: bool) -> tuple[Q, tuple[str, str]]:
    """The condition on the lines of a kind behind the cursor, and by which columns they are sorted."""
    since = COLUMNS[kind][0]
    sign = "" if oldest_first else "-"
    return _after(cursor, kind, since, oldest_first=oldest_first), (f"{sign}{since}", f"{sign}pk")


def _after(cursor: Cursor | None, kind: str, since: str, *, oldest_first: bool) -> Q:
    if cursor is None:
        return Q()
    at, rank, pk = cursor
    beyond = "gt" if oldest_first else "lt"
    if KINDS.index(kind) != rank:
        at_that_time_too = (KINDS.index(kind) > rank) is oldest_first
        return Q(**{f"{since}__{beyond}e" if at_that_time_too else f"{since}__{beyond}": at})
    return Q(**{f"{since}__{beyond}e": at}) & (Q(**{f"{since}__{beyond}": at}) | Q(**{f"pk__{beyond}": pk}))
