"""How many lines the inbox has, of each kind or together. Each is one query, and that of `Condition.found_calls`.

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
from sessions_app.finding.inbox import counted_up_to
from sessions_app.finding.inbox_mine import count_assigned
from sessions_app.finding.inbox_rows import BY_CAUSE, CHANGED, KINDS, OF_TOOLS
from sessions_app.finding.inbox_states import Condition, Matches
from sessions_app.models import Approval, Session, ToolCall
from sessions_app.models.compiled import compiled
from sessions_app.models.selects import Sql, union


def counts(
    now: datetime,
    condition: Condition | None = None,
    tool: str = "",
    *,
    known: Mapping[str, Count] = MappingProxyType({}),
) -> dict[str, Count]:
    """How many lines there are of each kind. One query, or none; with a filter those of `causes.read_causes`, too.

    :param tool: Only calls of this tool, and so only the kinds `OF_TOOLS`.
    :param known: Of kinds that need not be counted again.
    """
    kinds = [kind for kind in (OF_TOOLS if tool else KINDS) if kind not in known]
    if condition is not None and condition.failed.matches is Matches.SOME:
        by_cause = [kind for kind in kinds if kind in BY_CAUSE]
        causes = failures.read_causes(condition, kinds=by_cause, members=1)
        known = {**known, **{kind: Count.of(len(found)) for kind, found in causes.items()}}
        kinds = [kind for kind in kinds if kind not in BY_CAUSE]
    # Causes are few, and counted by reading one session of each.
    most = {kind: MOST if kind in BY_CAUSE else counted_up_to(kind, condition) for kind in kinds}
    selects = counted_lines(now, condition, tool, kinds=kinds, most=most)
    counted = numbers_of(selects, prepared=condition is None and not tool)
    numbers = {
        **known,
        **{kind: Count.of(number, most[kind]) for kind, number in zip(kinds, counted, strict=True)},
    }
    is_cut = condition is not None and condition.is_cut
    return {kind: numbers[kind].or_more(is_cut) for kind in KINDS if kind in numbers}


def count_together(
    now: datetime,
    condition: Condition | None = None,
    tool: str = "",
    *,
    kinds: Sequence[str] = KINDS,
    assignee: int | None = None,
) -> Count:
    """How many lines of these kinds there are. One query, which stops beyond `counting.MOST`; up to three for an
    assignee.

    :param assignee: Only those of sessions that are assigned to this user. The others are those of `counts`.
    """
    kinds = [kind for kind in kinds if not tool or kind in OF_TOOLS]
    is_whole = condition is None and not tool
    is_cut = condition is not None and condition.is_cut
    if not kinds:
        return Count(0, more=is_cut)
    if assignee is not None and not is_whole:
        found = count_assigned(assignee, condition or Condition.of(Q()), now, tool, kinds)
        if found is not None:
            return found
    selects = counted_lines(now, condition, tool, kinds=kinds, assignee=assignee)
    return count_of_all(selects, prepared=is_whole).or_more(is_cut)


def counted_lines(
    now: datetime,
    condition: Condition | None = None,
    tool: str = "",
    *,
    kinds: Sequence[str] = KINDS,
    assignee: int | None = None,
    most: Mapping[str, int] = MappingProxyType({}),
) -> list[Sql]:
    """For each of the kinds the lines to be counted with `counting.count_each`.

    :param most: Up to one more than which number the lines of a kind are counted, if not `counting.MOST`.
    """
    is_whole = condition is None and not tool
    condition = _assigned(condition, assignee)
    selects = []
    for kind in kinds:
        if kind in BY_CAUSE:
            select = failures.causes_to_count(condition, changed=kind == CHANGED)
        elif is_whole:
            select = _all_to_count(kind, now, assignee)
        else:
            parts = inbox_rows.rows_of(kind, now, condition, tool)
            select = to_count(*parts, most=most.get(kind, MOST))
        selects.append(select)
    return selects


def _all_to_count(kind: str, now: datetime, assignee: int | None) -> Sql:
    """As `to_count` of `inbox_rows.rows_of` without another condition."""
    match kind:
        case "approval":
            return _approvals_to_count.sql_with_params(now, assignee)
        case "doubt":
            return _doubts_to_count.sql_with_params(assignee)
        case _:
            parts = range(_PARTS_OF_STUCK if assignee is None else _PARTS_OF_ASSIGNED)
            return union([_stuck_to_count.sql_with_params(now, assignee, part=part) for part in parts])


# How many parts `inbox_rows.stuck_sessions` has without a condition, and with that of a person's sessions.
_PARTS_OF_STUCK, _PARTS_OF_ASSIGNED = 4, 2


@compiled
def _approvals_to_count(now: datetime, assignee: int | None) -> QuerySet[Approval, int]:
    [rows] = inbox_rows.approvals(now, _assigned(None, assignee))
    return up_to_most(rows.all())


@compiled
def _doubts_to_count(assignee: int | None) -> QuerySet[ToolCall, int]:
    [rows] = inbox_rows.doubts(_assigned(None, assignee))
    return up_to_most(rows.all())


@compiled
def _stuck_to_count(now: datetime, assignee: int | None, *, part: int) -> QuerySet[Session, UUID]:
    parts = inbox_rows.stuck_sessions(now, _assigned(None, assignee))
    assert len(parts) == (_PARTS_OF_STUCK if assignee is None else _PARTS_OF_ASSIGNED)
    return up_to_most(parts[part].all())


def _assigned(condition: Condition | None, assignee: int | None) -> Condition | None:
    """The condition, and that the session is assigned to this user, if there is one: few sessions are."""
    if assignee is None:
        return condition
    if condition is None:
        return Condition.of(Q(assignee=assignee), Matches.SOME)
    return condition.narrowed(Q(assignee=assignee), Matches.SOME)
