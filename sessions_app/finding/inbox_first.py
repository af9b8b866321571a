"""The first lines of the inbox, of one kind, by compiled queries: a page of the inbox has three of them, and most are
the first page.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.db.models import Q, QuerySet

from sessions_app.finding.inbox_cursor import COLUMNS, Cursor, place
from sessions_app.finding.inbox_rows import (
    APPROVAL,
    DOUBT,
    STUCK,
    approvals,
    doubts,
    of_kind,
    rows_of,
    stuck_sessions,
)
from sessions_app.finding.inbox_states import Condition, Matches, OfState
from sessions_app.finding.parts import Part, first_of_all
from sessions_app.models.compiled import compiled, planned_anew

Columns = QuerySet[Any, tuple[Any, ...]]


def first_lines(
    kind: str, now: datetime, condition: Condition | None, tool: str, *, oldest_first: bool, most: int
) -> Sequence[tuple[Any, ...]]:
    """The columns of the first lines of a kind that is not listed by cause: see `columns`. At most one query, and
    that of `Condition.found_calls`.
    """
    if condition is not None:
        return _that_meet(kind, now, condition, tool, oldest_first=oldest_first, most=most)
    if tool:
        return list(columns(kind, rows_of(kind, now, None, tool), oldest_first=oldest_first, most=most))
    if kind == DOUBT:
        return _all_doubts(oldest_first=oldest_first, most=most)
    of_all = _all_approvals if kind == APPROVAL else _all_stuck
    return of_all(now, oldest_first=oldest_first, most=most)


def columns(
    kind: str,
    parts: Sequence[Part],
    cursor: Cursor | None = None,
    *,
    condition: Condition | None = None,
    oldest_first: bool,
    most: int,
) -> Columns:
    """The columns of the first lines behind the cursor: since when each is there, its key, and those of `COLUMNS`.

    :param condition: That of the parts, where they have one.
    """
    since, *others = COLUMNS[kind]
    beyond, order = place(cursor, kind, oldest_first=oldest_first)
    keys_first = condition is not None and of_kind(kind, condition).matches is not Matches.MANY
    found = first_of_all([part.filter(beyond) for part in parts], order, most, keys_first=keys_first)
    return found.values_list(since, "pk", *others, named=False)


@compiled
def _all_approvals(now: datetime, *, oldest_first: bool, most: int) -> Columns:
    return columns(APPROVAL, approvals(now, None), oldest_first=oldest_first, most=most)


@compiled
def _all_doubts(*, oldest_first: bool, most: int) -> Columns:
    return columns(DOUBT, doubts(None), oldest_first=oldest_first, most=most)


@compiled
def _all_stuck(now: datetime, *, oldest_first: bool, most: int) -> Columns:
    return columns(STUCK, stuck_sessions(now, None), oldest_first=oldest_first, most=most)


def _that_meet(
    kind: str, now: datetime, condition: Condition, tool: str, **how: Any
) -> Sequence[tuple[Any, ...]]:
    stopped, moving = condition.stopped, condition.moving
    if stopped.is_none and (kind != STUCK or moving.is_none):
        return []
    how |= {"matches": stopped.matches, "is_named": stopped.is_named}
    where, last = stopped.where, stopped.last
    if kind == STUCK:
        return _stuck_that_meet(now, where, last, moving.where, moving_matches=moving.matches, **how)
    is_many = stopped.matches is Matches.MANY
    found, keys = condition.found_calls(), None
    if found is not None:
        keys = found[kind]
        if keys is None and not is_many:
            return []
    how["are_found"] = found is not None
    since = condition.since if is_many else None
    at = now if kind == APPROVAL else None
    return _calls_that_meet(at, where, last, since, tool or None, keys, **how)


@planned_anew
def _calls_that_meet(
    now: datetime | None,
    where: Q,
    last: Q,
    since: datetime | None,
    tool: str | None,
    keys: str | None,
    *,
    are_found: bool,
    matches: Matches,
    is_named: bool,
    oldest_first: bool,
    most: int,
) -> Columns:
    """
    :param now: For requests; calls in doubt do not expire, and have none.
    :param keys: Of the calls, if they ``are_found``.
    """
    stopped = OfState(where, matches, is_named=is_named, last=last)
    kind = DOUBT if now is None else APPROVAL
    calls = (lambda: {kind: keys}) if are_found else None
    condition = Condition(stopped, stopped, stopped, since=since, calls=calls)
    rows = doubts(condition, tool or "") if now is None else approvals(now, condition, tool or "")
    return columns(kind, rows, condition=condition, oldest_first=oldest_first, most=most)


@planned_anew
def _stuck_that_meet(
    now: datetime,
    where: Q,
    last: Q,
    where_moving: Q,
    *,
    matches: Matches,
    is_named: bool,
    moving_matches: Matches,
    oldest_first: bool,
    most: int,
) -> Columns:
    stopped = OfState(where, matches, is_named=is_named, last=last)
    condition = Condition(stopped, OfState(where_moving, moving_matches), stopped)
    rows = stuck_sessions(now, condition)
    return columns(STUCK, rows, condition=condition, oldest_first=oldest_first, most=most)
