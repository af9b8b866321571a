"""Failed and parked sessions by the cause of their failure, and those that wait since their agent has changed.

The index of the causes is searched from one to the next, so that the sessions that share one are not read: a query
costs a few rows for each cause, however many sessions there are.
"""

# What is put into the SQL are names of columns, statuses and numbers; all values are parameters.
# ruff: noqa: S608

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db import connection
from django.db.models import Q

from sessions_app.finding.counting import MOST, Count
from sessions_app.finding.parts import NO_ROWS, Sql, as_sql
from sessions_app.models import Phase, Session, Status, WaitingFor

MOST_CAUSES = 200
_TABLE = Session._meta.db_table


@dataclass(frozen=True, slots=True)
class Cause:
    """Sessions that have failed for one reason: the oldest, when the last failed, and how many there are."""

    key: UUID
    oldest: UUID
    newest: UUID
    number: Count


def read_causes(where: Q | None = None, *, changed: bool = False, limit: int = MOST_CAUSES) -> list[Cause]:
    """The causes for which sessions have failed, or wait since their agent has ``changed`` or cannot run.

    One query, which reads a few rows of each.
    """
    session = f"SELECT s.id FROM {_TABLE} s WHERE s.failure = causes.failure AND {{where}} ORDER BY"
    columns = (
        f"causes.failure, ({session} s.updated_at, s.id LIMIT 1), ({session} s.updated_at DESC, s.id DESC LIMIT 1), "
        f"(SELECT count(*) FROM (SELECT 1 FROM {_TABLE} s WHERE s.failure = causes.failure AND {{where}} "
        f"LIMIT {MOST + 1}) AS members)"
    )
    sql, values = causes_sql(columns, where, limit, changed=changed)
    with connection.cursor() as cursor:
        cursor.execute(sql, values)
        rows = cursor.fetchall()
    return [
        Cause(_uuid(key), _uuid(oldest), _uuid(newest), Count.of(number))
        for key, oldest, newest, number in rows
    ]


def causes_sql(columns: str, where: Q | None, limit: int, *, changed: bool) -> Sql:
    """Selects the columns for each key of a cause: the index is searched for the next key, members are skipped.

    All sessions of one cause have a changed agent, or none: the keys of the others are passed over one by one, and not
    their sessions.
    """
    failed = f"(s.status = '{Status.WAITING}' OR (s.status = '{Status.IDLE}' AND s.phase = '{Phase.ERROR}'))"
    is_other = ""
    if changed:
        failed = f"(s.waiting_for = '{WaitingFor.CHANGED}' AND s.status = '{Status.WAITING}')"
    values: tuple[Any, ...] = ()
    if where:
        sessions, values = as_sql(Session.objects.filter(where).order_by().values("pk"))
        failed = "1 = 0" if sessions == NO_ROWS else f"{failed} AND s.id IN ({sessions})"
    if not changed:
        any_member = (
            f"SELECT s.waiting_for FROM {_TABLE} s WHERE s.failure = causes.failure AND {failed} LIMIT 1"
        )
        is_other = f" AND ({any_member}) <> '{WaitingFor.CHANGED}'"
    following = (
        f"SELECT s.failure FROM {_TABLE} s WHERE {{condition}} AND {failed} ORDER BY s.failure LIMIT 1"
    )
    first = following.replace("{condition}", "s.failure IS NOT NULL")
    then = following.replace("{condition}", "s.failure > causes.failure")
    columns = columns.replace("{where}", failed)
    sql = (
        f"WITH RECURSIVE causes(failure) AS (SELECT ({first}) UNION ALL SELECT ({then}) FROM causes "
        f"WHERE causes.failure IS NOT NULL) SELECT {columns} FROM causes WHERE causes.failure IS NOT NULL{is_other} "
        f"LIMIT {limit}"
    )
    return sql, values * sql.count(failed)


def _uuid(value: UUID | str) -> UUID:
    return value if isinstance(value, UUID) else UUID(value)
