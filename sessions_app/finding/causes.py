"""Sessions that have failed, or wait for another attempt, by the cause, and those whose agent has changed.

The index of the causes is searched from one to the next, so that the sessions that share one are not read: a query
costs a few rows for each cause, however many sessions there are.
"""

# What is put into the SQL are names of columns, statuses and numbers; all values are parameters.
# ruff: noqa: S608

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from django.core.exceptions import EmptyResultSet, FullResultSet
from django.db import DEFAULT_DB_ALIAS, connection
from django.db.models import Q, QuerySet
from django.db.models.lookups import PatternLookup

from sessions_app.finding.counting import MOST, Count, sessions_about
from sessions_app.finding.inbox_rows import BY_CAUSE, CHANGED
from sessions_app.finding.inbox_states import HAS_CAUSE, Condition, Matches, OfState
from sessions_app.models import Phase, Session, Status, WaitingFor
from sessions_app.models.compiled import planned_anew
from sessions_app.models.selects import NO_ROWS, Sql, as_sql, sql_of

# So many causes are listed; to read them, PostgreSQL takes some 30 ms.
MOST_CAUSES = 1_000
# So many sessions that have failed and meet a condition are sorted by their causes faster than each cause is looked up.
MOST_MEMBERS = 3_000
# Without an alias, so that a condition of Django's can be put into the SQL.
_TABLE = Session._meta.db_table


@dataclass(frozen=True, slots=True)
class Cause:
    """Sessions that have failed for one reason: the oldest, when the last failed, and how many there are."""

    key: UUID
    oldest: UUID
    newest: UUID
    number: Count


def read_causes(
    condition: Condition | None = None,
    *,
    kinds: Sequence[str] = BY_CAUSE,
    limit: int = MOST_CAUSES,
    members: int = MOST,
) -> dict[str, list[Cause]]:
    """The causes for which sessions have failed, and those for which they wait since their agent has changed or cannot
    run, by kind.

    One query for each kind, which reads a few rows of each cause. With a condition that not ``MANY`` sessions meet it
    is one or two for both, unless more than `MOST_MEMBERS` of these sessions have failed: to look for the few members
    that meet it, each session of each cause would be read.

    :param limit: At most so many of each kind, by their keys.
    :param members: Up to which number the sessions of a cause are counted.
    """
    found = _read_causes(condition, kinds, limit, members) if kinds else {}
    if condition is None or not condition.is_cut:
        return found
    # One session remains a line of its own, with what can be done with it.
    return {
        kind: [replace(cause, number=cause.number.or_more(cause.number.number > 1)) for cause in of_kind]
        for kind, of_kind in found.items()
    }


def _read_causes(
    condition: Condition | None, kinds: Sequence[str], limit: int, members: int
) -> dict[str, list[Cause]]:
    failed = condition.failed if condition is not None else None
    if failed is not None and failed.matches is not Matches.MANY:
        found = _causes_of_members(failed, members)
        if found is not None:
            return {kind: found.get(kind == CHANGED, [])[:limit] for kind in kinds}
    where = failed.where if failed is not None else None
    return {kind: _causes_one_by_one(where, limit, members, changed=kind == CHANGED) for kind in kinds}


def causes_to_count(condition: Condition | None, *, changed: bool) -> Sql:
    """Selects a row for each cause, up to one more than `counting.MOST`; of a `FEW` sessions by reading these."""
    failed = condition.failed if condition is not None else None
    if failed is not None and failed.matches is Matches.FEW:
        is_changed = Q(waiting_for=WaitingFor.CHANGED)
        rows = failed.sessions(HAS_CAUSE).filter(is_changed if changed else ~is_changed)
        return as_sql(rows.values("failure").distinct()[: MOST + 1])
    where = failed.where if failed is not None else None
    return _causes_sql("1", where, MOST + 1, changed=changed)


def _causes_of_members(failed: OfState, members: int) -> dict[bool, list[Cause]] | None:
    """The causes of all sessions that meet the condition, by whether their agent has changed. At most two queries.

    :returns: None if there are too many.
    """
    if failed.is_none:
        return {}
    # Nearly all that have a cause have failed, which PostgreSQL does not know.
    have_cause = failed.where & Q(failure__isnull=False)
    may_be_many = failed.matches is not Matches.FEW and connection.vendor == "postgresql"
    if may_be_many and sessions_about(have_cause) > MOST_MEMBERS:
        return None
    selected, values = sql_of(_members, failed.where, is_named=failed.is_named, limit=MOST_MEMBERS + 1)
    if selected == NO_ROWS:
        return {}
    sql = (
        "SELECT DISTINCT failure, is_changed, first_value(pk) OVER cause, last_value(pk) OVER cause, "
        "count(*) OVER cause, count(*) OVER () "
        f"FROM (SELECT failure, updated_at, pk, waiting_for = '{WaitingFor.CHANGED}' AS is_changed "
        f"FROM ({selected}) AS selected) AS members WINDOW cause AS (PARTITION BY failure, is_changed "
        "ORDER BY updated_at, pk ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING) ORDER BY failure"
    )
    with connection.cursor() as cursor:
        cursor.execute(sql, values)
        found = cursor.fetchall()
    if found and found[0][-1] > MOST_MEMBERS:
        return None
    causes: dict[bool, list[Cause]] = {}
    for key, is_changed, oldest, newest, number, _ in found:
        cause = Cause(_uuid(key), _uuid(oldest), _uuid(newest), Count.of(number, members))
        causes.setdefault(bool(is_changed), []).append(cause)
    return causes


@planned_anew
def _members(where: Q, *, is_named: bool, limit: int) -> QuerySet[Session, tuple[Any, ...]]:
    rows = OfState(where, Matches.SOME, is_named=is_named).sessions(HAS_CAUSE)
    return rows.values_list("failure", "waiting_for", "updated_at", "pk")[:limit]


def _causes_one_by_one(where: Q | None, limit: int, members: int, *, changed: bool) -> list[Cause]:
    """The causes by searching from one to the next. One query."""
    session = f"SELECT id FROM {_TABLE} WHERE failure = causes.failure AND {{where}} ORDER BY"
    columns = (
        f"causes.failure, ({session} updated_at, id LIMIT 1), ({session} updated_at DESC, id DESC LIMIT 1), "
        f"(SELECT count(*) FROM (SELECT 1 FROM {_TABLE} WHERE failure = causes.failure AND {{where}} "
        f"LIMIT {members + 1}) AS members)"
    )
    sql, values = _causes_sql(columns, where, limit, changed=changed)
    with connection.cursor() as cursor:
        cursor.execute(sql, values)
        rows = cursor.fetchall()
    return [
        Cause(_uuid(key), _uuid(oldest), _uuid(newest), Count.of(number, members))
        for key, oldest, newest, number in rows
    ]


def _causes_sql(columns: str, where: Q | None, limit: int, *, changed: bool) -> Sql:
    """Selects the columns for each key of a cause: the index is searched for the next key, members are skipped.

    All sessions of one cause have a changed agent, or none: the keys of the others are passed over one by one, and not
    their sessions.
    """
    state = f"(status = '{Status.WAITING}' OR (status = '{Status.IDLE}' AND phase = '{Phase.ERROR}'))"
    is_other = ""
    if changed:
        state = f"(waiting_for = '{WaitingFor.CHANGED}' AND status = '{Status.WAITING}')"
    matches, values = _matches(where) if where else ("1 = 1", ())
    failed = f"{state} AND {matches}"
    # Nearly all that have a cause are in such a state. PostgreSQL does not know that, and might read all sessions in
    # the state once for each cause.
    member = f"CASE WHEN {state} THEN true ELSE false END AND {matches}"
    if not changed:
        any_member = f"SELECT waiting_for FROM {_TABLE} WHERE failure = causes.failure AND {member} LIMIT 1"
        is_other = f" AND ({any_member}) <> '{WaitingFor.CHANGED}'"
    following = f"SELECT failure FROM {_TABLE} WHERE {{condition}} AND {failed} ORDER BY failure LIMIT 1"
    first = following.replace("{condition}", "failure IS NOT NULL")
    then = following.replace("{condition}", "failure > causes.failure")
    columns = columns.replace("{where}", member)
    sql = (
        f"WITH RECURSIVE causes(failure) AS (SELECT ({first}) UNION ALL SELECT ({then}) FROM causes "
        f"WHERE causes.failure IS NOT NULL) SELECT {columns} FROM causes WHERE causes.failure IS NOT NULL{is_other} "
        f"LIMIT {limit}"
    )
    return sql, values * sql.count(matches)


def _matches(where: Q) -> Sql:
    """The condition on a row of the sessions."""
    rows = Session.objects.filter(where).order_by()
    tables = sum(map(bool, rows.query.alias_refcount.values()))
    if tables > 1 or _has_pattern(rows.query.where):
        # With a column of another table; or PostgreSQL would look up the text again for each cause.
        sessions, values = as_sql(rows.values("pk"))
        return ("1 = 0", ()) if sessions == NO_ROWS else (f"id IN ({sessions})", values)
    try:
        condition, parameters = rows.query.get_compiler(DEFAULT_DB_ALIAS).compile(rows.query.where)
    except EmptyResultSet:
        return "1 = 0", ()
    except FullResultSet:
        return "1 = 1", ()
    return condition, tuple(parameters)


def _has_pattern(condition: Any) -> bool:
    return isinstance(condition, PatternLookup) or any(map(_has_pattern, getattr(condition, "children", ())))


def _uuid(value: UUID | str) -> UUID:
    return value if isinstance(value, UUID) else UUID(value)
