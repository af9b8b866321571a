"""How many lines of a filtered inbox are of the sessions that are assigned to one person.

Each page of the inbox shows that number. Few sessions are, so they are named by their keys, and the lines are counted
by a statement that PostgreSQL plans once for a connection.
"""

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from django.db import connection
from django.db.models import Q, QuerySet

from sessions_app.finding.counting import Count, Sent, count_of_all, keys_of_sessions, up_to_most
from sessions_app.finding.facets import Facets
from sessions_app.finding.inbox_condition import MOST_KEYS
from sessions_app.finding.inbox_facets import OF_STATES, where_in_states
from sessions_app.finding.inbox_rows import (
    APPROVAL,
    BY_CAUSE,
    CHANGED,
    DOUBT,
    STUCK,
    approvals,
    doubts,
    stuck_sessions,
)
from sessions_app.finding.inbox_states import HAS_CAUSE, Condition, Named, OfState
from sessions_app.finding.keys import listed_up_to
from sessions_app.finding.parts import Part
from sessions_app.models import Approval, Session, ToolCall, WaitingFor
from sessions_app.models.compiled import compiled
from sessions_app.models.selects import NO_ROWS, Sql

_IS_CHANGED = Q(waiting_for=WaitingFor.CHANGED)


def count_assigned(
    assignee: int, condition: Condition, now: datetime, tool: str, kinds: Sequence[str]
) -> Count | None:
    """How many lines of these kinds, and of this tool, are of sessions that meet the condition and are assigned to this
    user: exact up to `counting.MOST`. At most two queries.

    :returns: None if the sessions are too many to name.
    """
    states = (condition.stopped, condition.moving, condition.failed)
    rows = [
        (NO_ROWS, ()) if state.is_none else keys_of_sessions(where & state.where & state.last)
        for where, state in zip(_assigned(assignee), states, strict=True)
    ]
    read = listed_up_to(rows, MOST_KEYS)
    if not all(are_all for _, are_all in read):
        return None
    named = [Sent(keys) if keys is not None else None for keys, _ in read]
    selects = [select for kind in kinds for select in _lines(kind, now, Sent(tool), *named)]
    return count_of_all(selects, prepared=True).or_more(condition.is_cut)


def _assigned(assignee: int) -> list[Q]:
    """The conditions that a session is the person's and in each of the `OF_STATES`, if it is not in another one."""
    if connection.vendor != "postgresql":
        return [Q(assignee=assignee) & state for state, *_ in OF_STATES]
    # Of all of a person's sessions a quarter may have a line: the index of facets has these.
    facets = Facets(assignee=str(assignee))
    return [where_in_states(facets, statuses, also) for _, statuses, also in OF_STATES]


def _lines(
    kind: str, now: datetime, tool: str, stopped: str | None, moving: str | None, failed: str | None
) -> list[Sql]:
    """The lines of a kind, as `counting.count_of_all` takes them.

    :param stopped: The keys of the sessions that may have a line in that state, `keys.listed`, None for none; so are
        ``moving`` and ``failed``.
    """
    if kind in BY_CAUSE:
        return [_causes.sql_with_params(failed, changed=kind == CHANGED)] if failed else []
    selects = []
    if kind == STUCK and moving:
        selects.append(_not_moving.sql_with_params(now, moving))
    if kind == STUCK and stopped:
        selects.append(_expired.sql_with_params(now, stopped))
    if kind == APPROVAL and stopped:
        selects.append(_approvals.sql_with_params(now, stopped, tool or None))
    if kind == DOUBT and stopped:
        selects.append(_doubts.sql_with_params(stopped, tool or None))
    return selects


@compiled
def _approvals(now: datetime, stopped: str, tool: str | None) -> QuerySet[Approval, int]:
    [rows] = approvals(now, _named(stopped), tool or "")
    return up_to_most(rows.all())


@compiled
def _doubts(stopped: str, tool: str | None) -> QuerySet[ToolCall, int]:
    [rows] = doubts(_named(stopped), tool or "")
    return up_to_most(rows.all())


@compiled
def _not_moving(now: datetime, moving: str) -> QuerySet[Session, UUID]:
    return up_to_most(_stuck(now, _named(moving))[0].all())


@compiled
def _expired(now: datetime, stopped: str) -> QuerySet[Session, UUID]:
    return up_to_most(_stuck(now, _named(stopped))[1].all())


def _stuck(now: datetime, condition: Condition) -> list[Part]:
    """Those that do not move of the sessions that should, and those of which an approval has expired."""
    parts = stuck_sessions(now, condition)
    assert len(parts) == 2
    return parts


@compiled
def _causes(failed: str, *, changed: bool) -> QuerySet[Session, UUID | None]:
    rows = _named(failed).failed.sessions(HAS_CAUSE).filter(_IS_CHANGED if changed else ~_IS_CHANGED)
    return rows.values_list("failure", flat=True).distinct()


def _named(keys: str) -> Condition:
    state = OfState.of_named(Named(keys))
    return Condition(state, state, state)
