"""Which sessions a search finds: by their history, title, customer, agent and id. At most seven queries.

What very many sessions contain is looked for in the newest matches only. Of the few sessions of a small queue all that
match are found.
"""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from django.db import connection
from django.db.models import Q

from sessions_app.finding import newest
from sessions_app.finding.hidden import contains, has_index
from sessions_app.finding.keys import are
from sessions_app.finding.search import NEWEST, NEWEST_IN_QUEUE, newest_sessions, sessions_among
from sessions_app.finding.search_words import MOST_WORDS, parts_of
from sessions_app.models import Session

# So many sessions are found by their title, customer, agent or id: those that changed last.
MOST_NAMED = 150
# So many in a queue or beside a filter. Where one of a hundred sessions has the text, so many are found by reading from
# the newest session on; by an index all that have it would be read.
MOST_NAMED_IN_QUEUE = 200


@dataclass(frozen=True, slots=True)
class Found:
    """What a search finds. ``few``: at most some two thousand sessions. ``cut``: only the newest; there may be more.

    thorough: whether it looked at up to `NEWEST_IN_QUEUE` messages and calls that match, and not only at `NEWEST`.
    has_all_among: of the sessions that it was asked to look through, it has found all that match.
    """

    where: Q
    few: bool = False
    cut: bool = False
    thorough: bool = False
    has_all_among: bool = False

    @property
    def is_cut_among(self) -> bool:
        """Whether there may be more of the sessions that it was asked to look through, or of all where of none."""
        return self.cut and not self.has_all_among


def search(text: str, *, whole: bool, thorough: bool, among: Sequence[uuid.UUID] | None = None) -> Found:
    """Sessions whose history, title or customer contains each part of the text, whose agent it is, or whose id starts
    with it.

    Each is looked for by an index of its own, so what is found are keys.

    :param whole: Find by what is hidden, too.
    :param thorough: As that of `Found`.
    :param among: At most some hundred sessions, of which all that match are found.
    """
    most, most_named = (NEWEST_IN_QUEUE, MOST_NAMED_IN_QUEUE) if thorough else (NEWEST, MOST_NAMED)
    named = Q(agent=text) | id_begins_with(text)
    parts = [part for part, _ in parts_of(text)][:MOST_WORDS] or [text]
    contained = contains(parts, "title", "customer", whole=whole)
    keys, more = newest_sessions(text, whole=whole, limit=most)
    # Shown names stand in another table: of a condition on both tables PostgreSQL would read all sessions.
    titled, more_titled = _titled(contained, named if whole else Q(pk__in=[]), parts, most_named)
    found = {*keys, *titled}
    if among:
        rows = Session.objects.filter(contained | named if whole else contained, are(among))
        found.update(sessions_among(text, among, whole=whole), rows.values_list("pk", flat=True))
    where = are(found) if whole else are(found) | named
    has_all = among is not None
    return Found(where, few=whole, cut=more or more_titled, thorough=thorough, has_all_among=has_all)


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
