"""How many lines the inbox has, of each kind or together. Each is one query.

Numbers are exact up to `counting.MOST`, and where a filter is asked of each line up to a page: see
`inbox.counted_up_to`.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from uuid import UUID

from django.db.models import Q, QuerySet

from sessions_app.finding import causes as failures
from sessions_app.finding import inbox_rows
from sessions_app.finding.counting import (
    MOST,
    Count,
    count_of_all,
    numbers_of,
    to_count,
    up_to_most,
)
from sessions_app.finding.filters import SessionFilter
from sessions_app.finding.inbox import counted_up_to
from sessions_app.finding.inbox_rows import BY_CAUSE, CHANGED, KINDS, OF_TOOLS, Matches
from sessions_app.finding.keys import are
from sessions_app.finding.parts import Sql, union
from sessions_app.models import Approval, Session, ToolCall
from sessions_app.models.compiled import compiled

# So many keys of sessions are looked up faster than what is found in another table, or by a part of a text.
MOST_KEYS = 500
# So many sessions of one agent or tag are looked through faster than all lines of the inbox for those of them.
MOST_SOME = 30_000


def prepare(session_filter: SessionFilter) -> tuple[Q, Matches]:
    """The condition of a filter, and how many sessions meet it. At most two queries besides those of the filter.

    A page asks ten times which sessions meet its condition. Those of a few are found first, and named by their keys.
    """
    # What a search finds is a condition on each kind of lines, and so should be few sessions.
    where = session_filter.where(thorough=False)
    if session_filter.found.few:
        return where, Matches.FEW
    if session_filter.has_index:
        keys = list(Session.objects.filter(where).order_by().values_list("pk", flat=True)[: MOST_KEYS + 1])
        if len(keys) <= MOST_KEYS:
            return are(keys), Matches.FEW
        if session_filter.is_selective or session_filter.finds_about() <= MOST_SOME:
            return where, Matches.SOME
    return where, Matches.MANY


def counts(
    now: datetime,
    where: Q | None = None,
    tool: str = "",
    *,
    matches: Matches = Matches.MANY,
    known: Mapping[str, Count] = MappingProxyType({}),
) -> dict[str, Count]:
    """How many lines there are of each kind. One query, or none; and those of `causes.read_causes` with a filter.

    :param where: A condition on the sessions. ``tool``: only calls of this tool, and so only the kinds `OF_TOOLS`.
    :param matches: How many sessions meet the condition.
    :param known: Of kinds that need not be counted again.
    """
    kinds = [kind for kind in (OF_TOOLS if tool else KINDS) if kind not in known]
    most = counted_up_to(where, matches)
    if where and matches is Matches.SOME:
        by_cause = [kind for kind in kinds if kind in BY_CAUSE]
        causes = {kind: failures.read_causes(where, changed=kind == CHANGED, members=1) for kind in by_cause}
        known = {**known, **{kind: Count.of(len(found)) for kind, found in causes.items()}}
        kinds = [kind for kind in kinds if kind not in BY_CAUSE]
    selects = counted_lines(now, where, tool, kinds=kinds, matches=matches, most=most)
    counted = numbers_of(selects, prepared=not where and not tool)
    numbers = {
        **known,
        # Causes are few, and counted by reading one session of each.
        **{
            kind: Count.of(number, MOST if kind in BY_CAUSE else most)
            for kind, number in zip(kinds, counted, strict=True)
        },
    }
    return {kind: numbers[kind] for kind in KINDS if kind in numbers}


def count_together(
    now: datetime,
    where: Q | None = None,
    tool: str = "",
    *,
    kinds: Sequence[str] = KINDS,
    assignee: int | None = None,
    matches: Matches = Matches.MANY,
) -> Count:
    """How many lines of these kinds there are. One query, which stops beyond `counting.MOST`, and one for an assignee.

    :param assignee: Only those of sessions that are assigned to this user. The others are those of `counts`.
    """
    kinds = [kind for kind in kinds if not tool or kind in OF_TOOLS]
    if assignee is not None and (where or tool):
        keys = _assigned_to(assignee, most=MOST_KEYS + 1)
        if not keys:
            return Count(0, more=False)
        if len(keys) <= MOST_KEYS:
            where, matches, assignee = (where or Q()) & are(keys), Matches.FEW, None
    selects = counted_lines(now, where, tool, kinds=kinds, assignee=assignee, matches=matches)
    return count_of_all(selects, prepared=not where and not tool)


@compiled
def _assigned_to(assignee: int, *, most: int) -> QuerySet[Session, UUID]:
    return Session.objects.filter(assignee=assignee).order_by().values_list("pk", flat=True)[:most]


def counted_lines(
    now: datetime,
    where: Q | None = None,
    tool: str = "",
    *,
    kinds: Sequence[str] = KINDS,
    assignee: int | None = None,
    matches: Matches = Matches.MANY,
    most: int = MOST,
) -> list[Sql]:
    """For each of the kinds the lines to be counted with `counting.count_each`, up to one more than ``most``."""
    condition = _assigned(where, assignee)
    if assignee is not None and matches is Matches.MANY:
        matches = Matches.SOME
    rows = inbox_rows.rows_by_kind(now, condition, tool, matches) if where or tool else {}
    selects = []
    for kind in kinds:
        if kind in BY_CAUSE:
            changed = kind == CHANGED
            select = failures.causes_to_count(condition, changed=changed, few=matches is Matches.FEW)
        else:
            select = to_count(*rows[kind], most=most) if rows else _all_to_count(kind, now, assignee)
        selects.append(select)
    return selects


def _all_to_count(kind: str, now: datetime, assignee: int | None) -> Sql:
    """As `to_count` of `inbox_rows.rows_by_kind` without another condition."""
    match kind:
        case "approval":
            return _approvals_to_count.sql_with_params(now, assignee)
        case "doubt":
            return _doubts_to_count.sql_with_params(assignee)
        case _:
            numbers = range(_PARTS_OF_STUCK)
            return union([_stuck_to_count.sql_with_params(now, assignee, part=part) for part in numbers])


_PARTS_OF_STUCK = 4


@compiled
def _approvals_to_count(now: datetime, assignee: int | None) -> QuerySet[Approval, int]:
    return up_to_most(inbox_rows.approvals(now, _assigned(None, assignee), matches=Matches.SOME))


@compiled
def _doubts_to_count(assignee: int | None) -> QuerySet[ToolCall, int]:
    return up_to_most(inbox_rows.doubts(_assigned(None, assignee), matches=Matches.SOME))


@compiled
def _stuck_to_count(now: datetime, assignee: int | None, *, part: int) -> QuerySet[Session, UUID]:
    parts = inbox_rows.stuck_sessions(now, _assigned(None, assignee))
    assert len(parts) == _PARTS_OF_STUCK
    return up_to_most(parts[part])


def _assigned(where: Q | None, assignee: int | None) -> Q | None:
    """The condition, and that the session is assigned to this user, if there is one."""
    return where if assignee is None else (where or Q()) & Q(assignee=assignee)
