"""A list of the desk: one page of a queue, and the numbers of all queues beside it.

Which sessions match the filter is asked once for both where these are few, and for the first page of all sessions.
Nothing is locked.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.db.models import Q

from sessions_app.finding import queue_numbers, queues, search_sessions
from sessions_app.finding.counting import Count, digest, sessions_about
from sessions_app.finding.facets import Facets
from sessions_app.finding.filters import SessionFilter
from sessions_app.finding.first_sessions import first_keys
from sessions_app.finding.keys import are
from sessions_app.finding.queues import Asked
from sessions_app.models import Phase, Session


@dataclass(frozen=True, slots=True)
class SessionList:
    """``next`` is the cursor of the next page, "" on the last."""

    sessions: list[Session]
    next: str
    counts: list[queue_numbers.QueueCount]

    @property
    def mark(self) -> str:
        """Another one whenever a row or a number of the list has changed."""
        rows = [(session.pk, session.change, session.updated_at.isoformat()) for session in self.sessions]
        return digest([*rows, *(count.number for count in self.counts)])

    def number_of(self, key: str) -> Count | None:
        """How many sessions the queue has."""
        return next((count.number for count in self.counts if count.queue.key == key), None)


def condition_of(
    key: str,
    now: datetime,
    session_filter: SessionFilter,
    *,
    oldest_first: bool | None = None,
    by_phase: bool = True,
) -> Q:
    """The filter, as a list of the queue has it: a search looks through the first sessions of the list.

    The queries are those of `SessionFilter.where`, whose parameter ``by_phase`` is, and for a search those of
    `first_sessions.first_keys`, twice at most, and an estimate for each condition of the queue.

    :param oldest_first: The order of the list, where it is not that of the queue.
    """

    def first(where: Q, facets: Facets | None) -> tuple[list[tuple[UUID, int]], bool]:
        if _has_about(key, now) <= 2 * search_sessions.FEW:
            of_queue = first_keys(key, search_sessions.FEW, now=now, oldest_first=oldest_first)
            # All of a small queue are looked through beside a filter, too.
            if not where or search_sessions.are_few(*of_queue):
                return of_queue
        several = _is_of_several(session_filter.narrowing, session_filter, key)
        asked = Asked(where, several, facets if several else None, session_filter.changed_since)
        return first_keys(key, search_sessions.FIRST, now=now, asked=asked, oldest_first=oldest_first)

    # The newest of all sessions are those with the newest matches, unless a long session has most of these.
    are_newest = key == "all" and not session_filter.narrows and not oldest_first
    enough = search_sessions.FIRST if are_newest else None
    return session_filter.where(by_phase=by_phase, first=first, enough=enough)


def _has_about(key: str, now: datetime) -> int:
    """How many sessions a queue has, by an estimate for each of its conditions."""
    return sum(map(sessions_about, queues.conditions_of(key, now)))


def _is_of_several(names: Sequence[str], session_filter: SessionFilter, key: str) -> bool:
    """Whether these fields of the filter and the queue ask for several things, which may hardly ever be met together.

    One field has an index of its own, but for the phase of those that have failed. Each queue has one in the order of
    the times at which its sessions changed.
    """
    if names == ["since"]:
        return False
    return len(names) + (key != "all") > 1 or session_filter.only_phase == Phase.ERROR


def read_list(
    key: str, *, now: datetime, session_filter: SessionFilter, after: str, oldest_first: bool
) -> SessionList:
    """
    :param session_filter: A valid one, or one without the fields that are invalid.
    :param after: The cursor that the page before gave; an invalid one gives the first page.
    """
    where = condition_of(key, now, session_filter, oldest_first=oldest_first)
    found, fields = session_filter.found, session_filter.fields_on
    cut_but = key if found.has_all_listed else ""
    # Where all sessions that match have been found, the number of each queue is exact.
    is_cut = found.is_cut_listed if key == "all" else found.cut
    few, filtered_by = found.few, where
    several = _is_of_several(session_filter.names_on, session_filter, key)
    facets = session_filter.facets if several and not queues.BY_KEY[key].by_time else None
    if where and not few:
        # The first page of all sessions is among them, too.
        has_page = fields > 1 and key == "all" and not after and not oldest_first
        # Of one field an index finds the first hundred sooner than that of all facets finds all.
        of_index = several if key == "all" else fields > 1
        together = facets if of_index else None
        matching, few = queues.keys_of_matching(where, several=of_index, facets=together, newest=has_page)
        if few and not matching:
            return SessionList([], "", queue_numbers.none(cut=is_cut, cut_but=cut_but))
        if few:
            where = are(matching)
        elif facets:
            # Tags are asked of each row, without the table that they stand in.
            where = facets.asked
        filtered_by = are(matching) if few or has_page else where
    page = queues.read_page(
        key,
        now=now,
        asked=Asked(
            filtered_by,
            several=filtered_by is where and not few and several,
            facets=facets,
            since=session_filter.changed_since,
            few=bool(where) and few,
        ),
        after=after,
        oldest_first=oldest_first,
        limit=queues.PAGE_OF_FOUND if session_filter.text else queues.PAGE,
    )
    by_row = False
    if not few:
        where, by_row = _asked_by_row(session_filter, where)
    counts = queue_numbers.counts(now, where, few=few, cut=is_cut, cut_but=cut_but, by_row=by_row)
    # A number that is "at least" is no smaller than what the page itself shows.
    counts = [count.at_least(len(page.sessions)) if count.queue.key == key else count for count in counts]
    return SessionList(page.sessions, page.next, counts)


def _asked_by_row(session_filter: SessionFilter, where: Q) -> tuple[Q, bool]:
    """The filter as the newest sessions of each queue are asked whether they meet it, and whether each by itself is.

    PostgreSQL would find all sessions that meet it for each queue, to see which of them are among the newest.
    """
    if session_filter.facets:
        # Tags are asked of each row, without the table that they stand in.
        return session_filter.facets.asked, True
    return where, session_filter.is_of_age_only or session_filter.is_list_of_keys
