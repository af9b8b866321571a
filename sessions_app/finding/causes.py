"""Failed and parked sessions by the cause of their failure, and those that wait since their agent has changed.

The index of the causes is searched from one to the next, so that the sessions that share one are not read: a query
costs a few rows for each cause, however many sessions there are.
"""

# What is put into the SQL are names of columns, statuses and numbers; all values are parameters.
# ruff: noqa: S608

from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any
from uuid import UUID

from django.core.exceptions import EmptyResultSet, FullResultSet
from django.db import DEFAULT_DB_ALIAS, connection
from django.db.models import Q, QuerySet
from django.db.models.lookups import PatternLookup

from sessions_app.finding.counting import MOST, Count
from sessions_app.finding.parts import NO_ROWS, Sql, as_sql
from sessions_app.models import Phase, Session, Status, WaitingFor

MOST_CAUSES = 200
# So many sessions that have failed and meet a condition are read at once.
MOST_MEMBERS = 2_000
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
    where: Q | None = None,
    *,
    changed: bool = False,
    limit: int = MOST_CAUSES,
    members: int = MOST,
    many: bool = False,
) -> list[Cause]:
    """The causes for which sessions have failed, or wait since their agent has ``changed`` or cannot run.

    One query, which reads a few rows of each. With a condition it is the second one, unless ``many`` sessions meet it:
    to look for the few that do, each session of each cause would be read.

    :param where: A condition on the sessions.
    :param members: Up to which number the sessions of a cause are counted.
    """
    if where and not many:
        rows = _members(where, changed=changed).order_by()
        keys = list(rows.values_list("failure", "updated_at", "pk", named=False)[: MOST_MEMBERS + 1])
        if len(keys) <= MOST_MEMBERS:
            causes = [(key, list(group)) for key, group in groupby(sorted(keys), itemgetter(0))]
            return [
                Cause(key, group[0][2], group[-1][2], Count.of(len(group), members))
                for key, group in causes[:limit]
            ]
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


def causes_to_count(where: Q | None, *, changed: bool, few: bool = False) -> Sql:
    """Selects a row for each cause, up to one more than `counting.MOST`.

    :param few: The condition is met by some hundreds of sessions: these are read instead.
    """
    if where and few:
        return as_sql(_members(where, changed=changed).order_by().values("failure").distinct()[: MOST + 1])
    return _causes_sql("1", where, MOST + 1, changed=changed)


def _members(where: Q, *, changed: bool) -> QuerySet[Session]:
    """The sessions of the causes that meet the condition."""
    rows = Session.objects.filter(where, failure__isnull=False)
    if changed:
        return rows.filter(waiting_for=WaitingFor.CHANGED, status=Status.WAITING)
    failed = Q(status=Status.WAITING) | Q(status=Status.IDLE, phase=Phase.ERROR)
    return rows.filter(failed).exclude(waiting_for=WaitingFor.CHANGED)


def _causes_sql(columns: str, where: Q | None, limit: int, *, changed: bool) -> Sql:
    """Selects the columns for each key of a cause: the index is searched for the next key, members are skipped.

    All sessions of one cause have a changed agent, or none: the keys of the others are passed over one by one, and not
    their sessions.
    """
    failed = f"(status = '{Status.WAITING}' OR (status = '{Status.IDLE}' AND phase = '{Phase.ERROR}'))"
    is_other = ""
    if changed:
        failed = f"(waiting_for = '{WaitingFor.CHANGED}' AND status = '{Status.WAITING}')"
    values: tuple[Any, ...] = ()
    if where:
        matches, values = _matches(where)
        failed = f"{failed} AND {matches}"
    if not changed:
        any_member = f"SELECT waiting_for FROM {_TABLE} WHERE failure = causes.failure AND {failed} LIMIT 1"
        is_other = f" AND ({any_member}) <> '{WaitingFor.CHANGED}'"
    following = f"SELECT failure FROM {_TABLE} WHERE {{condition}} AND {failed} ORDER BY failure LIMIT 1"
    first = following.replace("{condition}", "failure IS NOT NULL")
    then = following.replace("{condition}", "failure > causes.failure")
    columns = columns.replace("{where}", failed)
    sql = (
        f"WITH RECURSIVE causes(failure) AS (SELECT ({first}) UNION ALL SELECT ({then}) FROM causes "
        f"WHERE causes.failure IS NOT NULL) SELECT {columns} FROM causes WHERE causes.failure IS NOT NULL{is_other} "
        f"LIMIT {limit}"
    )
    return sql, values * sql.count(failed)


def _matches(where: Q) -> Sql:
    """The condition on a row of the sessions."""
    rows = Session.objects.filter(where).order_by()
    if len(rows.query.alias_map) > 1 or _has_pattern(rows.query.where):
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
