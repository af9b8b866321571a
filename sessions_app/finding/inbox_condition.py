"""Which sessions the lines of the inbox are asked of, and how: that depends on how many sessions meet the condition."""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import Any

from django.db import connection
from django.db.models import Q, QuerySet

from sessions_app.finding.counting import are_about, count_up_to, keys_of_sessions, sessions_about
from sessions_app.finding.facets import Facets
from sessions_app.finding.filters import SessionFilter
from sessions_app.finding.inbox_calls import finding_calls
from sessions_app.finding.inbox_facets import OF_STATES, WITH_CAUSE, where_in_states
from sessions_app.finding.inbox_states import (
    HAS_CAUSE,
    IS_MOVING,
    IS_STOPPED,
    MOVING,
    Condition,
    Matches,
    Named,
    OfState,
    in_each_state,
    in_one_state,
)
from sessions_app.finding.keys import are, listed_each, listed_up_to
from sessions_app.finding.parts import opaque
from sessions_app.finding.queues import ATTENTION
from sessions_app.finding.session_list import condition_of
from sessions_app.models import STOPPED, Phase, Session, SessionTag, Status
from sessions_app.models.selects import Sql, sql_of

# Each session in one of these states, as the index `session_customer_open` has it (migration 0031).
_MAY_HAVE_LINE = opaque(Q(status__in=(*STOPPED, *MOVING)) | Q(failure__isnull=False))
# So many keys of sessions that may have a line are looked up faster than what is found in another table, or by a part
# of a text.
MOST_KEYS = 3_000
# So many keys are looked for where more sessions than that are expected.
MOST_KEYS_OF_MANY = 500
# Beside a time, lines are asked for their sessions in their order where one in so many sessions meets the rest.
COMMON = 25
# Of so many sessions of an agent it is seen whether most of them have a tag.
LOOKED_AT_FOR_TAG = 100
# So many sessions of one agent or tag are looked through faster than all lines of the inbox for those of them.
MOST_SOME = 30_000


def prepare(session_filter: SessionFilter, now: datetime, *, oldest_first: bool = True) -> Condition | None:
    """The condition of a filter; None where it leaves all sessions. At most 18 queries besides the filter's.

    A page asks ten times which sessions meet its condition. Those of a few are found first, and named by their keys.
    """
    condition = _of(session_filter, now, oldest_first)
    if condition is None:
        return None
    is_cut = session_filter.found.is_cut_listed
    condition = replace(condition, is_cut=is_cut, since=session_filter.changed_since)
    return replace(condition, calls=finding_calls(condition))


def _of(session_filter: SessionFilter, now: datetime, oldest_first: bool) -> Condition | None:
    rest = condition_of(ATTENTION.key, now, session_filter, oldest_first=oldest_first, by_phase=False)
    status, phase = session_filter.only_status, session_filter.only_phase
    where = rest & Q(phase=phase) if phase else rest
    if not where:
        return None
    if session_filter.found.few:
        return _of_found(where, status, phase)
    if facets := session_filter.facets:
        if _are_common_since(facets):
            return Condition.of(facets.asked_in_order)
        if facets.is_of_state and not _have_changed_few(facets.since):
            return of_status(rest, status, phase)
        if _waits_often(facets):
            # Of the rows that an index of agents has, each is asked for the tag.
            return _of_some_or_most(facets.asked if facets.tag else where)
        # One index has the customers of those that may have a line.
        if not session_filter.finds_customers and (session_filter.fields_on > 1 or _is_of_few(facets)):
            by_state = by_facets(facets)
            if by_state is not None:
                return by_state
    if session_filter.is_selective or (
        session_filter.is_of_agent_or_tag and session_filter.finds_about() <= MOST_SOME
    ):
        named = by_keys(
            where,
            is_of_customer=session_filter.finds_customers,
            is_estimated_well=session_filter.is_of_age_only,
            status=status,
            phase=phase,
        )
        return _of_some_or_most(where) if named is None else named
    if status or phase:
        return of_status(rest, status, phase)
    if session_filter.is_of_agent_or_tag:
        rows = Session.objects.filter(where).order_by().values_list("pk", flat=True)
        keys = list(rows[: MOST_KEYS_OF_MANY + 1])
        if len(keys) <= MOST_KEYS_OF_MANY:
            return Condition.of(are(keys), Matches.FEW)
    if facets is not None and facets.tag:
        # Each row is asked for the tag as an index gives it.
        return Condition.of(facets.asked if facets.agent else facets.asked_in_order)
    return Condition.of(where)


def _of_found(where: Q, status: str, phase: str) -> Condition:
    """Those of the sessions that a search has found which may have a line, by their keys. One query."""
    rows = sql_of(in_each_state, Q(where, _MAY_HAVE_LINE), limit=MOST_KEYS + 1)
    keys = listed_each(rows, 3, MOST_KEYS)
    return Condition.of(where, Matches.FEW) if keys is None else Condition.of_named(keys, status, phase)


def _have_changed_few(since: datetime | None) -> bool:
    """Whether a time is asked for since which only a few sessions have changed. One estimate."""
    return since is not None and sessions_about(Q(updated_at__gte=since)) <= MOST_KEYS


def _is_of_few(facets: Facets) -> bool:
    """Whether a person or a rare tag is asked for: the index of facets finds those in each state. One estimate."""
    is_rare = facets.tag != "" and are_about(SessionTag.objects.filter(name=facets.tag)) <= MOST_SOME
    return is_rare or facets.is_of_person


def _waits_often(facets: Facets) -> bool:
    """Whether an agent is asked for of which more sessions wait or are paused than can be named, and nothing else that
    leaves few. At most four queries.

    Some agents wait for people more often than others, which PostgreSQL does not expect. It counts them by one index.
    """
    also = replace(facets, agent="", tag="", since=None, are_many_since=False)
    if (
        not facets.agent
        or also not in (Facets(), Facets(assignee="nobody"))
        or _have_changed_few(facets.since)
    ):
        return False
    stopped = Session.objects.filter(IS_STOPPED, agent=facets.agent)
    return (
        sessions_about(Q(agent=facets.agent)) <= MOST_SOME
        and count_up_to(stopped, MOST_KEYS).more
        and (not facets.tag or _have_mostly(facets.tag, stopped))
    )


def _have_mostly(tag: str, sessions: QuerySet[Session]) -> bool:
    """Whether most of the first of these sessions have the tag. One query."""
    some = sessions.order_by().values("pk")[:LOOKED_AT_FOR_TAG]
    number = Session.objects.filter(Facets(tag=tag).asked, pk__in=some).count()
    return 2 * number > LOOKED_AT_FOR_TAG


def _of_some_or_most(where: Q) -> Condition:
    # In the order of the lines, those of a customer or an assignee are soon found if they are a large part of all.
    return Condition.of(where, Matches.MANY if _are_one_in(2, where, IS_STOPPED) else Matches.SOME)


def by_keys(
    where: Q,
    *,
    is_of_customer: bool = False,
    is_estimated_well: bool = False,
    status: str = "",
    phase: str = "",
) -> Condition | None:
    """The sessions that meet the condition and may have a line, by their keys; None if they are too many to name.

    Which sessions meet it is searched once.

    :param is_of_customer: The condition is a part of a customer's name, for which there is an index.
    :param is_estimated_well: Where PostgreSQL expects too many, none are looked for.
    :param status: A part of the condition that is asked again, as is ``phase``: see `Named`.
    """
    expected = where & (IS_STOPPED | IS_MOVING | HAS_CAUSE)
    read = expected
    if is_of_customer and connection.vendor == "postgresql":
        read = Q(where, _MAY_HAVE_LINE)
    if_many = 0 if is_estimated_well else MOST_KEYS_OF_MANY
    keys = _few(expected, lambda limit: sql_of(in_each_state, read, limit=limit), 3, if_many=if_many)
    return None if keys is None else Condition.of_named(keys, status, phase)


def by_facets(facets: Facets) -> Condition | None:
    """The sessions that meet a filter of several fields, in each state by their keys if they are few enough. At most
    eight queries, and two more for each state in which they are too many to name.

    :returns: None if those that wait or are paused are expected to be very many, and if the filter comes to one field
        since more than half of all sessions have the others: for one there are better indexes.
    """
    fewer = _without_most(facets)
    if fewer.fields > 1 or _is_of_few(fewer):
        facets = fewer
    elif not facets.rest:
        return None
    where = [where_in_states(facets, statuses, also) for _, statuses, also in OF_STATES]
    # To name so many takes longer than to find the calls of sessions in the phase, of which there are hardly any.
    are_in_phase = (
        _have_no_calls(facets.phase)
        and facets.status in ("", *STOPPED)
        and not _have_changed_few(facets.since)
        and sessions_about(replace(facets, status="", phase="").asked) > MOST_SOME
    )
    if are_in_phase:
        where[0] = Q(pk__in=[])
    # How many of them are in a phase is guessed wrong: it depends on their status.
    if not (facets.phase or facets.status) and sessions_about(where[0]) > 2 * MOST_KEYS:
        return None
    # Few sessions of another phase or status have calls to decide. Beside a time, the first calls of all are not looked
    # at, but those from that time on.
    may_have_calls = not _are_without_calls(facets.status, facets.phase)
    may_be_first = may_have_calls and not facets.since
    share = COMMON if may_have_calls and facets.since else 2
    read = listed_up_to([keys_of_sessions(each) for each in where], MOST_KEYS)
    found = []
    for (keys, are_all), (state, *_) in zip(read, OF_STATES, strict=True):
        if state is IS_STOPPED and (are_in_phase or (_have_no_calls(facets.phase) and not are_all)):
            found.append(_in_phase(facets.phase, facets.status, Q(opaque(facets.asked))))
        elif are_all:
            found.append(OfState.of_named(Named(keys, facets.status, facets.phase)))
        elif state is HAS_CAUSE:
            # Too many have failed to be named, so each cause has some of them.
            found.append(OfState(facets.asked_in_order, Matches.MANY))
        else:
            # Those that wait longest need not be among the many that match.
            are_many = _are_one_in(share, facets.asked, state)
            matches = Matches.MANY if are_many else Matches.SOME
            found.append(OfState(facets.asked, matches, may_be_first=may_be_first and not are_many))
    return Condition(*found)


def _are_common_since(facets: Facets) -> bool:
    """Whether a time is asked for, and so many sessions meet the rest that some lines from that time on are soon found,
    and that of all times too many to name may have one. At most two estimates.
    """
    if facets.since is None or facets.status or facets.phase or _have_changed_few(facets.since):
        return False
    number = sessions_about(replace(facets, since=None).asked)
    return number > MOST_SOME and number * COMMON > sessions_about(Q())


def _without_most(facets: Facets) -> Facets:
    """The same, but an agent, a tag or an assignee that more than half of all sessions have is asked of each row, not
    of the index: it would compare long lists. At most four estimates.
    """
    most = sessions_about(Q()) / 2
    for name in ("agent", "tag", "assignee"):
        if getattr(facets, name):
            only = Facets(**{name: getattr(facets, name)})
            if sessions_about(only.asked) > most:
                changes: dict[str, Any] = {name: "", "rest": facets.rest & only.asked}
                facets = replace(facets, **changes)
    return facets


def of_status(where: Q, status: str, phase: str = "") -> Condition:
    """The sessions that meet the condition, have this status by it, and are in this phase, where one is given: none are
    in a state of another one.

    PostgreSQL does not see that a status and a state exclude each other, and looks for sessions that are in both.

    :param where: Without the phase, so that an index has all that is asked of a session at rest.
    """

    def of(statuses: tuple[Status, ...], state: Q, here: Q, if_many: Matches) -> OfState:
        """
        :param here: What the state comes to for this phase, with columns that have an index where there is one.
        """
        if status and status not in statuses:
            return OfState.of_named(Named(None, status, phase))
        asked = where & state & here
        keys = _few(asked, lambda limit: sql_of(in_one_state, asked, limit=limit), 1)
        if keys is None:
            return OfState(where & here, if_many)
        return OfState.of_named(Named(keys[0], status, phase))

    stopped = moving = failed = Q()
    is_moving, has_cause = IS_MOVING, HAS_CAUSE
    if phase:
        # The conditions on the phase say which status it is: where it is said again, PostgreSQL reads another index.
        is_moving = Q()
        stopped = Q(phase_at_rest=phase)
        moving = Q(status=Status.QUEUED, phase_at_rest=phase) | Q(status=Status.RUNNING, phase=phase)
        failed = Q(phase=phase)
        if phase != Phase.ERROR:
            failed, has_cause = Q(status=Status.WAITING, phase_at_rest=phase), Q(failure__isnull=False)
    # Requests and calls in doubt are of sessions that execute and wait. To ask each where few are of another phase or
    # status would take longer than to begin with the sessions.
    are_of_others = _are_without_calls(status, phase)
    are_many_moving = not phase or _are_one_in(10, where & moving, IS_MOVING)
    asks_more = where not in (Q(), Q(status=status))
    if _have_no_calls(phase) and asks_more and status in ("", *STOPPED):
        of_stopped = _in_phase(phase, status, where)
    else:
        of_stopped = of(STOPPED, IS_STOPPED, stopped, Matches.SOME if are_of_others else Matches.MANY)
    return Condition(
        of_stopped,
        of(MOVING, is_moving, moving, Matches.MANY if are_many_moving else Matches.SOME),
        of(WITH_CAUSE, has_cause, failed, Matches.MANY if has_cause is HAS_CAUSE else Matches.SOME),
    )


def _in_phase(phase: str, status: str, rest: Q) -> OfState:
    """The sessions that wait or are paused in a phase in which they hardly ever have calls to decide.

    One index has the phase, the status and the branch. To ask the rest takes to read each row.
    """
    state = {"phase_at_rest": phase, **({"status": status} if status else {})}
    return OfState(Q(**state), Matches.SOME, last=rest)


def _are_without_calls(status: str, phase: str) -> bool:
    """Whether hardly any of the sessions in the phase and the status has a call to decide."""
    return status == Status.PAUSED or _have_no_calls(phase)


def _have_no_calls(phase: str) -> bool:
    """Whether next to none of the sessions in the phase have a call to decide."""
    return phase not in ("", Phase.EXECUTING)


def _are_one_in(number: int, where: Q, state: Q) -> bool:
    """Whether one in so many of the sessions in the state meets the condition, so that lines are found soon in their
    order. Two queries.
    """
    return sessions_about(state & where) * number > sessions_about(state)


def _few(
    expected: Q,
    rows: Callable[[int], Sql],
    states: int,
    *,
    if_many: int = MOST_KEYS_OF_MANY,
) -> list[str | None] | None:
    """The keys of sessions in each of some states, as `listed_each` has them; None if they are too many. At most two
    queries.

    :param expected: The condition that they meet, written so that PostgreSQL guesses well how many they are.
    :param rows: Selects so many of their keys, and whether each is in the first of the states, the second, and so on.
    :param if_many: So many are looked for where too many are expected: what PostgreSQL expects may be wrong.
    """
    # SQLite counts no faster than it reads.
    are_many = connection.vendor == "postgresql" and sessions_about(expected) > MOST_KEYS
    if are_many and not if_many:
        return None
    most = min(MOST_KEYS, if_many) if are_many else MOST_KEYS
    return listed_each(rows(most + 1), states, most)
