"""Which sessions the lines of the inbox are asked of, and how: that depends on how many sessions meet the condition."""

from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Self
from uuid import UUID

from django.db import connection
from django.db.models import BooleanField, ExpressionWrapper, Q, QuerySet

from sessions_app.finding.counting import are_about
from sessions_app.finding.filters import SessionFilter
from sessions_app.finding.keys import are
from sessions_app.models import Phase, Session, Status

STOPPED = (Status.WAITING, Status.PAUSED)
MOVING = (Status.RUNNING, Status.QUEUED)
# That a session has failed, or cannot go on, for a cause that is known.
HAS_CAUSE = Q(failure__isnull=False) & (Q(status=Status.WAITING) | Q(status=Status.IDLE, phase=Phase.ERROR))
# So many keys of sessions that may have a line are looked up faster than what is found in another table, or by a part
# of a text.
MOST_KEYS = 3_000
# So many keys are looked for where the filter is not known to match a small part of all sessions.
MOST_KEYS_OF_MANY = 500
# So many sessions of one agent or tag are looked through faster than all lines of the inbox for those of them.
MOST_SOME = 30_000


class Matches(Enum):
    """How many sessions meet a condition.

    FEW: those are read first for every kind of lines. SOME: a small part of all, with which the search for approvals
    and calls in doubt begins. MANY: others, of which the condition is asked of each line in its order.
    """

    FEW = auto()
    SOME = auto()
    MANY = auto()


@dataclass(frozen=True, slots=True)
class Condition:
    """
    stopped: the condition on a session that waits or is paused. ``moving``: on one that runs or is queued. ``failed``:
        on one that has `HAS_CAUSE`.
    matches: how many sessions meet the condition.
    are_named: only sessions that are stopped, move and have a cause meet it, each by its key: to ask for that again
        would let PostgreSQL read all of those.
    """

    stopped: Q
    moving: Q
    failed: Q
    matches: Matches = Matches.MANY
    are_named: bool = False

    @classmethod
    def of(cls, where: Q, matches: Matches = Matches.MANY) -> Self:
        """One condition on all sessions."""
        return cls(where, where, where, matches)

    def narrowed(self, where: Q, matches: Matches) -> Self:
        """The condition and another one, which so many sessions meet."""
        return replace(
            self,
            stopped=self.stopped & where,
            moving=self.moving & where,
            failed=self.failed & where,
            matches=matches,
        )


def prepare(session_filter: SessionFilter) -> Condition | None:
    """The condition of a filter; None where it leaves all sessions. At most four queries besides those of the filter.

    A page asks ten times which sessions meet its condition. Those of a few are found first, and named by their keys.
    """
    # What a search finds is a condition on each kind of lines, and so should be few sessions.
    where = session_filter.where(thorough=False)
    if not where:
        return None
    if session_filter.found.few:
        return Condition.of(where, Matches.FEW)
    if not session_filter.has_index:
        return Condition.of(where)
    if session_filter.is_selective or session_filter.finds_about() <= MOST_SOME:
        return by_keys(where) or Condition.of(where, Matches.SOME)
    keys = list(
        Session.objects.filter(where).order_by().values_list("pk", flat=True)[: MOST_KEYS_OF_MANY + 1]
    )
    return Condition.of(are(keys), Matches.FEW) if len(keys) <= MOST_KEYS_OF_MANY else Condition.of(where)


def by_keys(where: Q) -> Condition | None:
    """The keys of the sessions that meet the condition and may have a line; None if they are too many to name."""
    rows = _with_lines(where)
    if connection.vendor == "postgresql" and are_about(rows) > MOST_KEYS:
        return None
    found = list(rows[: MOST_KEYS + 1])
    if len(found) > MOST_KEYS:
        return None
    return Condition(
        stopped=are([key for key, status, _ in found if status in STOPPED]),
        moving=are([key for key, status, _ in found if status in MOVING]),
        failed=are([key for key, _, has_cause in found if has_cause]),
        matches=Matches.FEW,
        are_named=True,
    )


def _with_lines(where: Q) -> QuerySet[Session, tuple[UUID, str, bool]]:
    """Their keys and statuses, and whether they have a cause."""
    rows = Session.objects.filter(where, Q(status__in=(*STOPPED, *MOVING)) | HAS_CAUSE).order_by()
    return rows.values_list("pk", "status", ExpressionWrapper(HAS_CAUSE, BooleanField()), named=False)
