"""Which sessions a search finds: by their history, title, customer, agent and id.

At most seven queries, and those that find the first sessions of a list. What very many sessions contain is looked for
in the newest matches of all sessions, and in the first sessions of the list for which it is asked: of a list of few
sessions all that match are found.
"""

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from django.db import connection
from django.db.models import Q

from sessions_app.finding import newest
from sessions_app.finding.hidden import contains, has_index
from sessions_app.finding.keys import are
from sessions_app.finding.parts import opaque
from sessions_app.finding.search import newest_sessions, sessions_among
from sessions_app.finding.search_words import MOST_WORDS, parts_of
from sessions_app.models import Session

# So many sessions are found by their title, customer, agent or id: those that changed last.
MOST_NAMED = 200
# A list of so few sessions, which have so many positions together, is looked through as a whole.
FEW, POSITIONS_OF_FEW = 500, 20_000
# Of another list so many of the first sessions, in so many of the newest positions of each, until these are so many.
FIRST, NEWEST_POSITIONS, MOST_POSITIONS = 200, 200, 10_000
# The keys and the last positions of the first sessions of a list, and whether these are all of it.
FirstSessions = Callable[[], tuple[Sequence[tuple[uuid.UUID, int]], bool]]


@dataclass(frozen=True, slots=True)
class Found:
    """What a search finds. ``few``: at most some two thousand sessions. ``cut``: only a part; there may be more.

    has_all_listed: of the list for which it was asked, it has found all that match.
    """

    where: Q
    few: bool = False
    cut: bool = False
    has_all_listed: bool = False

    @property
    def is_cut_listed(self) -> bool:
        """Whether there may be more in the list for which it was asked, or among all sessions if it was for none."""
        return self.cut and not self.has_all_listed


def search(text: str, *, whole: bool, first: FirstSessions | None = None, enough: int | None = None) -> Found:
    """Sessions whose history, title or customer contains each part of the text, whose agent it is, or whose id starts
    with it.

    Each is looked for by an index of its own, so what is found are keys.

    :param whole: Find by what is hidden, too.
    :param first: Of the list for which it is asked. It is called only where there may be more matches than are found
        without looking these sessions through.
    :param enough: Where so many sessions are found, those of the list are not looked through.
    """
    named = Q(agent=text) | id_begins_with(text)
    parts = [part for part, _ in parts_of(text)][:MOST_WORDS] or [text]
    contained = contains(parts, "title", "customer", whole=whole)
    newest_found, more = newest_sessions(text, whole=whole)
    # Shown names stand in another table: of a condition on both tables PostgreSQL would read all sessions.
    titled, more_titled = _titled(contained, named if whole else Q(pk__in=[]), parts, MOST_NAMED)
    found = {*newest_found, *titled}
    has_all = False
    if first is not None and (more or more_titled) and (enough is None or len(found) < enough):
        rows, are_all = first()
        has_all = are_few(rows, are_all)
        keys = [pk for pk, _ in (rows if has_all else rows[:FIRST])]
        after = dict.fromkeys(keys, 0) if has_all else _looked_through(rows)
        if more:
            found |= sessions_among(text, after, whole=whole)
        if more_titled:
            # No index of letters: each of these few is asked.
            asked = Q(opaque(contained | named if whole else contained))
            found.update(Session.objects.filter(are(keys), asked).values_list("pk", flat=True))
    where = are(found) if whole else are(found) | named
    return Found(where, few=whole, cut=more or more_titled, has_all_listed=has_all)


def are_few(first: Sequence[tuple[uuid.UUID, int]], are_all: bool) -> bool:
    """Whether these `FirstSessions` are a list that is looked through as a whole."""
    return are_all and sum(position for _, position in first) <= POSITIONS_OF_FEW


def _looked_through(first: Sequence[tuple[uuid.UUID, int]]) -> dict[uuid.UUID, int]:
    """Behind which position each of the sessions is looked through, of a list that is not looked through as a whole."""
    after: dict[uuid.UUID, int] = {}
    left = MOST_POSITIONS
    for pk, position in first[:FIRST]:
        left -= min(position, NEWEST_POSITIONS)
        if left < 0:
            break
        after[pk] = max(0, position - NEWEST_POSITIONS)
    return after


def _titled(contained: Q, named: Q, parts: Sequence[str], most: int) -> tuple[list[uuid.UUID], bool]:
    """The keys of the sessions that changed last of those whose title or customer contains the parts, or that are
    named, and whether there may be more. One query, or three for parts of which none has an index.
    """
    if not any(map(has_index, parts)) and connection.vendor == "postgresql":
        near, are_all = newest.near_sessions(contained, most + 1)
        by_change = Session.objects.order_by("-updated_at", "-id").values_list("pk", flat=True)
        keys = list(by_change.filter(named | are(near))[: most + 1])
        return keys[:most], len(keys) > most or not are_all
    keys = newest.matching_sessions(contained | named, most + 1)
    return keys[:most], len(keys) > most


def id_begins_with(text: str) -> Q:
    """Sessions whose id begins with the text, with or without its dashes: by the index of the keys."""
    digits = text.strip().replace("-", "").lower()
    if not digits or len(digits) > 32 or not set(digits) <= set("0123456789abcdef"):
        return Q(pk__in=[])
    return Q(pk__gte=uuid.UUID(digits.ljust(32, "0")), pk__lte=uuid.UUID(digits.ljust(32, "f")))
