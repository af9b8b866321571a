"""The newest rows that meet several conditions, of which PostgreSQL cannot tell how many meet all of them.

It takes conditions for independent of each other. Of two words that are frequent and never stand together it expects
many rows with both, and reads the whole table from its newest row on to find the first ones. Of a phrase whose letters
are everywhere it expects few, and reads all rows that may have it. So the newest rows of the table are read first, a
fixed number of them; only where too few of these match, an index finds all that do, which are then a small part.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import reduce
from operator import or_
from typing import Any
from uuid import UUID

from django.db import connection
from django.db.models import (
    DateTimeField,
    ExpressionWrapper,
    F,
    Q,
    QuerySet,
    Subquery,
    Value,
)
from django.db.models.expressions import RawSQL
from django.db.models.functions import Coalesce

from sessions_app.finding.counting import count_up_to
from sessions_app.finding.facets import TAG_NAMES, Facets
from sessions_app.finding.parts import opaque
from sessions_app.models import Session
from sessions_app.models.compiled import planned_anew
from sessions_app.models.selects import NO_ROWS, Sql, sql_of

# So many of the newest sessions are read first. To compare the letters of one takes several microseconds, as it does to
# read one by an index of letters and to sort it. What no index finds, a single character, is looked for in these only.
NEAR_SESSIONS = 3_000
# So many where one in SHARE of the former matches: an index would find more than are read here until enough do.
WIDE_SESSIONS = 20_000
SHARE = 80
# So many sessions of a list are asked by each of several filters, in its order, before all that match are found.
WALKED_SESSIONS = 5_000
# The same where an index has what the filters ask for, and so many where a list is expected to be full after as many:
# to find all that match costs little then, and grows with their number.
WALKED_WITH_FACETS = 1_500
MOST_WALKED_WITH_FACETS = 10_000
# Always true. PostgreSQL evaluates it before it runs the query beside it. Where work_mem is the default it is raised up
# to the end of the transaction: what an index finds of a frequent word does not fit into 4 MB, so that each row of it
# would be read and compared. It keeps the statement from being run by several processes, which is off anyway.
_WITH_MEMORY = (
    "(SELECT CASE current_setting('work_mem') WHEN '4MB' THEN set_config('work_mem', '32MB', true) END)"
    " IS DISTINCT FROM ''"
)
_NEWEST = ("-updated_at", "-id")
# To be ordered by: PostgreSQL has no index of it, so it does not read all sessions in that order.
_CHANGED_AT = ExpressionWrapper(F("updated_at") + Value(timedelta()), output_field=DateTimeField())


@dataclass(frozen=True, slots=True)
class Wider:
    """A query for more rows than those that are near, which is asked where from `least` to `most` of these match."""

    sql: Sql
    least: int
    most: int


def near_or_all(near: Sql, every: Sql, limit: int, *, wider: Sequence[Wider] = ()) -> Sql:
    """Asks the queries in their order, and selects the rows of the first that finds as many as the limit, else those of
    `every`. None is executed before it is needed. All have the limit, and the same columns.

    :param near: Of the newest rows of the table that match.
    :param every: Of all rows that match, in an order of which PostgreSQL has no index, so that it does not read them in
        that. Its sorts and bitmaps have more memory than is PostgreSQL's default.
    :param wider: Of more of the newest rows, where as many of those that are near match that they can be expected to
        have enough, and an index would find very many.
    """
    parts, values, names = [f"near AS MATERIALIZED ({near[0]})"], near[1], ["near"]
    for place, each in enumerate(wider):
        sql = f"SELECT * FROM ({each.sql[0]}) AS rows WHERE {_number('near')} BETWEEN {each.least:d} AND {each.most:d}"  # noqa: S608 - selects of our own
        parts.append(f"wider_{place} AS MATERIALIZED ({sql})")
        values += each.sql[1]
        names.append(f"wider_{place}")
    enough = f">= {limit:d}"
    selects = [f"SELECT * FROM {name} WHERE {_number(name)} {enough}" for name in names]  # noqa: S608 - as above
    not_enough = " AND ".join(f"NOT {_number(name)} {enough}" for name in names)
    selects.append(f"SELECT * FROM ({every[0]}) AS every WHERE {not_enough} AND {_WITH_MEMORY}")  # noqa: S608 - as above
    return f"WITH {', '.join(parts)} {' UNION ALL '.join(selects)}", (*values, *every[1])


def _number(name: str) -> str:
    return f"(SELECT count(*) FROM {name})"  # noqa: S608 - names of our own


def matching_sessions(where: Q, limit: int) -> list[UUID]:
    """The keys of the sessions that changed last of those that meet the condition, in any order. One query."""
    if connection.vendor == "sqlite":
        return list(_keys().filter(where)[:limit])
    every = sql_of(_sorted, where, order=_NEWEST, limit=limit)
    near, wide = (
        sql_of(_among_newest, where, number=number, limit=limit) for number in (NEAR_SESSIONS, WIDE_SESSIONS)
    )
    some = max(NEAR_SESSIONS // SHARE, NEAR_SESSIONS * limit // WIDE_SESSIONS)
    select = near_or_all(near, every, limit, wider=[Wider(wide, some, limit - 1)])
    with connection.cursor() as cursor:
        cursor.execute(*select)
        found: list[tuple[Any, ...]] = cursor.fetchall()
    return [key for (key,) in found]


def first_matching(rows: Q, where: Q, order: tuple[str, str], limit: int) -> Sql:
    """Selects the keys of the first of these sessions that meet the filter, in any order.

    Of two filters that many sessions meet, and hardly any both, PostgreSQL expects many to meet both, and would read
    all sessions in their order to find the first ones. So it reads `WALKED_SESSIONS` at most; where too few of these
    match, it has to find all that do, and begins with the filter that the fewest meet.

    :param rows: The condition of sessions in whose order an index has them.
    :param order: By when they changed, and by their keys.
    """
    if connection.vendor == "sqlite":
        return sql_of(_first, rows & where, order=order, limit=limit)
    every = sql_of(_sorted, rows & where, order=order, limit=limit)
    if every == (NO_ROWS, ()):
        return every
    return near_or_all(_walked([rows], where, order, limit, WALKED_SESSIONS), every, limit)


def first_with_facets(
    parts: Sequence[tuple[Q, Facets]],
    order: tuple[str, str],
    limit: int,
    *,
    every: Facets | None = None,
) -> Sql:
    """As `first_matching`, of the sessions of all parts together. PostgreSQL only.

    :param parts: Conditions of sessions in whose order an index has them, and facets that ask for those of them that
        match. All ask for the same but for the status and the phase. No session is in two parts.
    :param every: Facets that ask for the same sessions as those of all parts together, where the index finds them
        sooner by these.
    """
    of_index = every.of_index if every else reduce(or_, [facets.of_index for _, facets in parts])
    others = (every or parts[0][1]).others
    asked = reduce(or_, [facets.asked for _, facets in parts])
    all_of_them = sql_of(_sorted, of_index & others, order=order, limit=limit)
    if all_of_them == (NO_ROWS, ()):
        return all_of_them
    return _walked_or_all([rows for rows, _ in parts], asked, order, limit, all_of_them)


def _walked_or_all(parts: Sequence[Q], asked: Q, order: tuple[str, str], limit: int, every: Sql) -> Sql:
    """`near_or_all` of what is `_walked`: first of few sessions, and of more if enough can be expected among them."""
    near, wide = (
        _walked(parts, asked, order, limit, number)
        for number in (WALKED_WITH_FACETS, MOST_WALKED_WITH_FACETS)
    )
    some = max(1, limit * WALKED_WITH_FACETS // MOST_WALKED_WITH_FACETS)
    return near_or_all(near, every, limit, wider=[Wider(wide, some, limit - 1)])


def _walked(parts: Sequence[Q], asked: Q, order: tuple[str, str], limit: int, number: int) -> Sql:
    """Selects the keys of the first of these sessions that meet the condition, among so many of all parts together."""
    first = sql_of(_first, asked, order=order, limit=limit)
    rows = [sql_of(_with_tag_names, part, order=order, limit=number) for part in parts]
    if len(rows) == 1:
        return among(rows[0], first)
    # A session of one part may come before those that are left of another one.
    each = " UNION ALL ".join(f"({sql})" for sql, _ in rows)
    by = ", ".join(f"{name.removeprefix('-')} {'DESC' if name.startswith('-') else 'ASC'}" for name in order)
    merged = f"SELECT * FROM ({each}) AS parts ORDER BY {by} LIMIT {number:d}"  # noqa: S608 - selects of our own
    return among((merged, tuple(value for _, values in rows for value in values)), first)


@planned_anew
def _first(where: Q, *, order: tuple[str, str], limit: int) -> QuerySet[Session, UUID]:
    return Session.objects.filter(where).order_by(*order).values_list("pk", flat=True)[:limit]


@planned_anew
def _with_tag_names(where: Q, *, order: tuple[str, str], limit: int) -> QuerySet[Session]:
    tag_names = RawSQL(f"{connection.ops.quote_name(Session._meta.db_table)}.{TAG_NAMES}", ())  # noqa: S611 - our own
    return Session.objects.filter(where).annotate(**{TAG_NAMES: tag_names}).order_by(*order)[:limit]


@planned_anew
def _sorted(where: Q, *, order: tuple[str, str], limit: int) -> QuerySet[Session, UUID]:
    """The keys of all of them, found before they are put in order."""
    at = _CHANGED_AT.desc() if order[0].startswith("-") else _CHANGED_AT.asc()
    return Session.objects.filter(where).order_by(at, order[1]).values_list("pk", flat=True)[:limit]


def any_matching(facets: Facets, limit: int) -> Sql:
    """Selects the keys of sessions, up to the limit: those that changed last, or others."""
    every, values = sql_of(_any, facets.where)
    if every == NO_ROWS:
        return NO_ROWS, ()
    # Of a query with a limit PostgreSQL would expect that so few are found soon among all sessions.
    found = f"WITH found AS MATERIALIZED ({every}) SELECT * FROM found LIMIT {limit:d}"  # noqa: S608 - a select of our own
    return _walked_or_all([Q()], facets.asked, _NEWEST, limit, (found, values))


@planned_anew
def _any(where: Q) -> QuerySet[Session, UUID]:
    return Session.objects.filter(where).order_by().values_list("pk", flat=True)


def among(rows: Sql, matching: Sql) -> Sql:
    """The second query, which can have rows and selects keys, on the rows of the first one instead of the table."""
    sql, values = matching
    table = connection.ops.quote_name(Session._meta.db_table)
    selected, others = sql.split(f" FROM {table}", 1)
    these, parameters = rows
    return f"{selected} FROM ({these}) AS {table}{others}", (*parameters, *values)


def near_sessions(where: Q, limit: int) -> tuple[list[UUID], bool]:
    """As `matching_sessions`, of a condition for which there is no index: of the newest `NEAR_SESSIONS` sessions only.

    :returns: Their keys, and whether these are all sessions. Two queries.
    """
    return _among_newest(where, number=NEAR_SESSIONS, limit=limit), not count_up_to(
        Session.objects.all(), NEAR_SESSIONS
    ).more


@planned_anew
def _among_newest(where: Q, *, number: int, limit: int) -> QuerySet[Session, UUID]:
    last = Session.objects.order_by("-updated_at").values("updated_at")[number - 1 : number]
    # Where there are fewer sessions than that, all are among the newest.
    since = Coalesce(Subquery(last), Value(datetime.min.replace(tzinfo=UTC)))
    return _keys().filter(opaque(where), updated_at__gte=since)[:limit]


def _keys() -> QuerySet[Session, UUID]:
    return Session.objects.order_by(*_NEWEST).values_list("pk", flat=True)
