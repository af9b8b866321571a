"""The calls that a filtered inbox may have as lines, requests and calls in doubt, found by one query.

Of each kind they are those of sessions that wait or are paused, and to find these sessions takes longer than all else.
So it is done once for both kinds, and the lines are then asked for by the keys of their calls.
"""

from collections.abc import Mapping
from datetime import datetime
from functools import cache
from typing import Any

from django.core.exceptions import EmptyResultSet
from django.db import connection
from django.db.models import Q, QuerySet

from sessions_app.finding.inbox_rows import APPROVAL, DOUBT, stopped_with_older_calls
from sessions_app.finding.inbox_states import IS_STOPPED, Condition, FindCalls, Matches
from sessions_app.models import Approval, CallStatus, Session, ToolCall
from sessions_app.models.compiled import planned_anew

# So many calls are read by their keys faster than their sessions are searched again.
MOST_CALLS = 1_000
# Since when a call is in the inbox.
_SINCE = {APPROVAL: "request.asked_at", DOUBT: "doubt.started_at"}


def finding_calls(condition: Condition) -> FindCalls | None:
    """Finds the calls of sessions that meet the condition, and maybe others, when it is first called. One query.

    They are those from before `Condition.since` whose sessions have changed since, where `MANY` sessions meet it; and
    all, where hardly any call is of those that do (`OfState.last`).

    :returns: None for other conditions.
    """
    stopped, since = condition.stopped, condition.since
    if stopped.matches is not Matches.MANY:
        return cache(lambda: _find(stopped.where & IS_STOPPED)) if stopped.last else None
    if since is None:
        return None
    # In the order of the calls each of them would be asked before the first line is found.
    return cache(lambda: _find(stopped_with_older_calls(since), before=since))


def _find(where: Q, before: datetime | None = None) -> Mapping[str, str | None] | None:
    """
    :param where: Of the sessions.
    :param before: Only calls from before that time.
    """
    try:
        sessions, values = _stopped.sql_with_params(where)
    except EmptyResultSet:
        return dict.fromkeys(_SINCE)
    is_before, times = dict.fromkeys(_SINCE, ""), []
    if before is not None:
        is_before = {kind: f" AND {since} < %s" for kind, since in _SINCE.items()}
        times = [connection.ops.adapt_datetimefield_value(before)] * len(_SINCE)
    lists = "json_group_array" if connection.vendor == "sqlite" else "array_agg"
    selected = ", ".join(
        f"CAST({lists}(DISTINCT {key}) FILTER (WHERE {key} IS NOT NULL) AS text), count(DISTINCT {key})"
        for key in ("request.id", "doubt.id")
    )
    # Of what is joined PostgreSQL reads the open calls only, which are few, and the sessions once.
    sql = (
        f"WITH stopped(session, branch) AS ({sessions}) SELECT {selected} FROM stopped "  # noqa: S608 - tables and columns
        f"LEFT JOIN {Approval._meta.db_table} AS request ON request.session_id = stopped.session "
        f"AND request.decision = ''{is_before[APPROVAL]} "
        f"LEFT JOIN {ToolCall._meta.db_table} AS doubt ON doubt.branch_id = stopped.branch "
        f"AND doubt.status = '{CallStatus.DOUBT}'{is_before[DOUBT]} "
        "WHERE request.id IS NOT NULL OR doubt.id IS NOT NULL"
    )
    with connection.cursor() as cursor:
        cursor.execute(sql, (*values, *times))
        requests, number_of_requests, doubts, number_of_doubts = cursor.fetchone()
    if max(number_of_requests, number_of_doubts) > MOST_CALLS:
        return None
    return {APPROVAL: requests if number_of_requests else None, DOUBT: doubts if number_of_doubts else None}


@planned_anew
def _stopped(where: Q) -> QuerySet[Session, tuple[Any, ...]]:
    return Session.objects.filter(where).order_by().values_list("pk", "branch")
