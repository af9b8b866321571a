"""The lines of the inbox as rows: approvals, calls in doubt and stuck sessions, of sessions that meet a condition.

How PostgreSQL is asked for them depends on how many sessions meet it. The lines by cause are those of `finding.causes`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import reduce
from operator import or_
from typing import Any

from django.db.models import BooleanField, ExpressionWrapper, F, OuterRef, Q, QuerySet, Subquery, Value
from django.db.models.expressions import RawSQL

from sessions_app.finding import stuck
from sessions_app.finding.inbox_states import IS_STOPPED, Condition, Matches, OfState
from sessions_app.finding.keys import in_list
from sessions_app.finding.parts import NotEstimated, Part, SortedFirst, opaque
from sessions_app.models import Approval, CallStatus, Session, ToolCall
from sessions_app.models.selects import NO_ROWS, Sql, as_sql
from sessions_app.models.session import made_before

APPROVAL, DOUBT, FAILED, CHANGED, STUCK = KINDS = ("approval", "doubt", "failed", "changed", "stuck")
BY_CAUSE = (FAILED, CHANGED)
# The kinds whose lines are calls, and so of one tool each.
OF_TOOLS = (APPROVAL, DOUBT)
# No two clocks of an installation differ by as much.
CLOCKS_DIFFER = timedelta(days=1)


# The branch of a request, and whether it is the one that its session is on, which next to all open ones are.
_BRANCH_OF_REQUEST = f"(SELECT branch_id FROM {ToolCall._meta.db_table} WHERE id = of_call)"  # noqa: S608 - a table
_IS_OF_CURRENT_BRANCH = f"""EXISTS (
    SELECT 1 FROM {Session._meta.db_table} WHERE id = of_session AND branch_id = {_BRANCH_OF_REQUEST}
)"""  # noqa: S608 - as above
_ON_CURRENT_BRANCH = Q(call__branch=F("session__branch"))
_COLUMNS_OF_REQUEST = {"of_call": "call_id", "of_session": "session_id"}


def rows_of(kind: str, now: datetime, condition: Condition | None, tool: str = "") -> list[Part]:
    """The rows of a kind that is none of `BY_CAUSE`, as parts: see `finding.parts`."""
    if kind == APPROVAL:
        return approvals(now, condition, tool)
    return doubts(condition, tool) if kind == DOUBT else stuck_sessions(now, condition)


def of_kind(kind: str, condition: Condition) -> OfState:
    """The condition on the sessions of this kind of lines."""
    if kind in OF_TOOLS:
        return condition.stopped
    return condition.failed if kind in BY_CAUSE else condition.moving


def approvals(now: datetime, condition: Condition | None, tool: str = "") -> list[Part]:
    of_tool = Q(call__tool=tool) if tool else Q()
    if condition is None:
        return [open_approvals(now).filter(of_tool)]
    where = condition.stopped.where
    rows = calls_of_any_session(APPROVAL, now, tool)
    return _parts(_REQUESTS, condition, rows, lambda: open_approvals(now, where).filter(of_tool))


def doubts(condition: Condition | None, tool: str = "") -> list[Part]:
    of_tool = Q(tool=tool) if tool else Q()
    if condition is None:
        return [calls_in_doubt().filter(of_tool)]
    where = condition.stopped.where
    rows = _in_doubt().filter(of_tool)
    return _parts(_DOUBTS, condition, rows, lambda: calls_in_doubt(where).filter(of_tool))


@dataclass(frozen=True, slots=True)
class _Calls:
    """How the calls of a kind are asked for.

    since: the column that says since when a call is in the inbox.
    of: Which calls are of the sessions.
    checked: Those of the rows that are of the current branch of a session that waits or is paused, and that meets the
        condition; without one the rows are of such sessions already.
    """

    kind: str
    since: str
    of: Callable[[QuerySet[Session]], Q]
    checked: Callable[[QuerySet[Any], Q | None], Part]


def _parts(
    calls: _Calls, condition: Condition, rows: QuerySet[Any], each: Callable[[], QuerySet[Any]]
) -> list[Part]:
    """
    :param rows: The calls of any session.
    :param each: The lines, each asked for its session in their order.
    """
    stopped = condition.stopped
    since = condition.since if stopped.matches is Matches.MANY else None
    in_order: list[Part] = []
    if stopped.matches is Matches.MANY:
        if since is None:
            return [each()]
        in_order = [each().filter((f"{calls.since}__gte", since))]
        rows = rows.filter((f"{calls.since}__lt", since))
    asked: Q | None = stopped.where & stopped.last
    found = condition.found_calls()
    if found is not None:
        keys = found[calls.kind]
        if keys is None:
            return in_order or [rows.none()]
        rows = rows.filter(in_list(keys))
    elif since is not None:
        with_older = Session.objects.filter(stopped_with_older_calls(since)).order_by()
        rows = rows.filter(calls.of(with_older))
    else:
        # A join, unlike `_is_shown_by_a_stopped_session`: PostgreSQL begins with the sessions that meet the condition.
        rows = rows.filter(calls.of(stopped.sessions(IS_STOPPED)))
        asked = stopped.last or None
    return [*in_order, calls.checked(rows, asked)]


def _checked_requests(rows: QuerySet[Any], asked: Q | None) -> Part:
    is_shown, check = _ON_CURRENT_BRANCH, (_IS_OF_CURRENT_BRANCH, ())
    if asked is not None:
        is_shown &= Q(session__in=Session.objects.filter(asked, IS_STOPPED))
        check = _is_shown_by(asked, Q(pk=_column("of_session")), branch=_column(_BRANCH_OF_REQUEST))
    return SortedFirst(rows, is_shown, _COLUMNS_OF_REQUEST, check)


def _checked_doubts(rows: QuerySet[Any], asked: Q | None) -> Part:
    if asked is None:
        return rows
    are_asked = Q(branch__in=Session.objects.filter(asked, IS_STOPPED).values("branch"))
    check = _is_shown_by(asked, branch=_column("of_branch"))
    return SortedFirst(rows, are_asked, {"of_branch": "branch_id"}, check)


_REQUESTS = _Calls(
    APPROVAL, "asked_at", lambda sessions: Q(session__in=sessions.values("pk")), _checked_requests
)
_DOUBTS = _Calls(
    DOUBT, "started_at", lambda sessions: Q(branch__in=sessions.values("branch")), _checked_doubts
)


def stopped_with_older_calls(since: datetime) -> Q:
    """The sessions that wait or are paused and have changed since, and may have calls from before that time. An index
    has them with their branches.

    Of the sessions that such calls belong to, few have changed since. In the order of the calls each of them would be
    asked before the first line is found. No call is older than its session, but the clocks of the servers that wrote
    them may differ.
    """
    return IS_STOPPED & Q(updated_at__gte=since) & made_before(since + CLOCKS_DIFFER)


def _column(sql: str) -> RawSQL:
    return RawSQL(sql, ())  # noqa: S611 - names of our own


def calls_of_any_session(kind: str, now: datetime, tool: str = "") -> QuerySet[Any]:
    """The lines of a kind of `OF_TOOLS`, and others: of sessions in any state, and of branches that these have left."""
    if kind == APPROVAL:
        return _undecided(now).filter(Q(call__tool=tool) if tool else Q())
    return _in_doubt().filter(Q(tool=tool) if tool else Q())


def open_approvals(now: datetime, where: Q | None = None) -> QuerySet[Approval]:
    """Requests that a person can still decide: on the current branch of a session that waits or is paused.

    :param where: Another condition on that session.
    """
    branch = Subquery(ToolCall.objects.filter(pk=OuterRef(OuterRef("call"))).order_by().values("branch")[:1])
    # By its key: of a session that does not meet the condition the call need not be read.
    session = Q(pk=OuterRef("session"))
    return _undecided(now).filter(_is_shown_by_a_stopped_session(branch, where, session))


def _undecided(now: datetime) -> QuerySet[Approval]:
    return Approval.objects.filter(Q(expires_at=None) | Q(expires_at__gt=now), decision="")


def calls_in_doubt(where: Q | None = None) -> QuerySet[ToolCall]:
    """The calls in doubt that a person can decide. ``where`` is that of `open_approvals`."""
    return _in_doubt().filter(_is_shown_by_a_stopped_session(OuterRef("branch"), where))


def _in_doubt() -> QuerySet[ToolCall]:
    return ToolCall.objects.filter(status=CallStatus.DOUBT)


def _is_shown_by_a_stopped_session(
    branch: Subquery | OuterRef, where: Q | None, session: Q | None = None
) -> Subquery:
    """Whether a session that waits or is paused, and meets the condition, is on this branch.

    :param session: Which session that would be, where it is known.

    PostgreSQL asks this of each line while an index gives the lines in their order. Of a join it would expect that next
    to no line meets all conditions, as if they were independent of each other, and would read and sort every line.
    """
    if where:
        return Subquery(_shown_by(where, session or Q(), branch))
    is_stopped = ExpressionWrapper(IS_STOPPED, BooleanField())
    return Subquery(Session.objects.filter(branch=branch).order_by().values(is_stopped=is_stopped)[:1])


def _is_shown_by(where: Q, session: Q | None = None, *, branch: RawSQL) -> Sql:
    """The same as the ``sql`` of a `SortedFirst`."""
    sql, values = as_sql(_shown_by(where, session or Q(), branch))
    return ("FALSE", ()) if sql == NO_ROWS else (f"({sql})", values)


def _shown_by(where: Q, session: Q, branch: Subquery | OuterRef | RawSQL) -> QuerySet[Session, Any]:
    is_on_branch = Q(branch=branch)
    # Else PostgreSQL would look up the session by its branch, and so read the call of each line before anything else.
    rows = Session.objects.filter(
        session, where, IS_STOPPED, opaque(is_on_branch) if session else is_on_branch
    )
    return rows.order_by().values(is_there=Value(True))[:1]


def stuck_sessions(now: datetime, condition: Condition | None = None) -> list[Part]:
    """Sessions that should move by themselves and do not, as parts with an index each.

    Those that do not move are one part where not `MANY` sessions meet the condition: these are then searched once
    instead of thrice.
    """
    expired = stuck.expired_but_not_rejected(now)
    if condition is None:
        return [Session.objects.filter(each) for each in (*stuck.not_moving_conditions(now), expired)]
    # PostgreSQL would expect next to no session to be late, and read and sort all of them. It asks which are as an
    # index gives them in their order, as it does without another condition, where the plan is made for all times.
    moving = stuck.not_moving_conditions(now, compared=NotEstimated)
    last = Session.objects.filter(condition.stopped.where, condition.stopped.last, expired)
    if condition.moving.matches is not Matches.MANY:
        return [SortedFirst(Session.objects.filter(condition.moving.where, reduce(or_, moving))), last]
    return [*(Session.objects.filter(condition.moving.where, each) for each in moving), last]
