"""The newest rows that meet several conditions, of which PostgreSQL cannot tell how many meet all of them.

It takes conditions for independent of each other. Of two words that are frequent and never stand together it expects
many rows with both, and reads the whole table from its newest row on to find the first ones. Of a phrase whose letters
are everywhere it expects few, and reads all rows that may have it. So the newest rows of the table are read first, a
fixed number of them; only where too few of these match, an index finds all that do, which are then a small part.
"""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import connection
from django.db.models import (
    BooleanField,
    Case,
    DateTimeField,
    ExpressionWrapper,
    F,
    Q,
    QuerySet,
    Subquery,
    Value,
    When,
)
from django.db.models.functions import Coalesce

from sessions_app.finding.counting import count_up_to
from sessions_app.finding.parts import Sql, as_sql
from sessions_app.models import Session

# So many of the newest sessions are read first. To compare the letters of one takes several microseconds.
NEAR = 4_000


def opaque(condition: Q) -> Case:
    """The condition in a form that PostgreSQL does not look into: it uses no index for it but one of the same form."""
    return Case(When(condition, then=True), default=False, output_field=BooleanField())


def near_or_all(first: Sql, every: Sql, limit: int) -> Sql:
    """Selects what the first query does, if that is as many rows as the limit, and else what the other one does, which
    is not executed before.

    :param first: Of the newest rows of the table. Both have the limit, and the same columns.
    :param every: Of all rows, in an order of which PostgreSQL has no index, so that it does not read them in that.
    """
    (near_sql, near_values), (every_sql, every_values) = first, every
    number = "(SELECT count(*) FROM near)"
    sql = (
        f"WITH near AS MATERIALIZED ({near_sql}) SELECT * FROM near WHERE {number} >= {limit:d} "  # noqa: S608 - selects of our own
        f"UNION ALL SELECT * FROM ({every_sql}) AS every WHERE {number} < {limit:d}"
    )
    return sql, (*near_values, *every_values)


def newest_sessions(where: Q, limit: int) -> list[UUID]:
    """The keys of the sessions that changed last of those that meet the condition, in any order. One query."""
    if connection.vendor == "sqlite":
        return list(_keys().filter(where)[:limit])
    at = ExpressionWrapper(F("updated_at") + Value(timedelta()), output_field=DateTimeField())
    every = _keys().filter(where).order_by(at.desc(), "-id")[:limit]
    with connection.cursor() as cursor:
        cursor.execute(*near_or_all(as_sql(_near(where, limit)), as_sql(every), limit))
        found: list[tuple[Any, ...]] = cursor.fetchall()
    return [key for (key,) in found]


def near_sessions(where: Q, limit: int) -> tuple[list[UUID], bool]:
    """As `newest_sessions`, of a condition for which there is no index: of the newest `NEAR` sessions only.

    :returns: Their keys, and whether these are all sessions. Two queries.
    """
    return list(_near(where, limit)), not count_up_to(Session.objects.all(), NEAR).more


def _near(where: Q, limit: int) -> QuerySet[Session, UUID]:
    last = Session.objects.order_by("-updated_at").values("updated_at")[NEAR : NEAR + 1]
    # Where there are no more sessions than that, all are among the newest.
    since = Coalesce(Subquery(last), Value(datetime.min.replace(tzinfo=UTC)))
    return _keys().filter(opaque(where), updated_at__gte=since)[:limit]


def _keys() -> QuerySet[Session, UUID]:
    return Session.objects.order_by("-updated_at", "-id").values_list("pk", flat=True)
