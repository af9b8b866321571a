"""The condition of a filtered inbox, for each of the states in which a session may have a line, and how many sessions
meet it. `finding.inbox_condition` makes it of a filter.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import Enum, auto
from typing import Any, Self

from django.db.models import BooleanField, ExpressionWrapper, Q, QuerySet, Value

from sessions_app.finding.keys import in_list
from sessions_app.finding.parts import opaque
from sessions_app.models import STOPPED, Phase, Session, Status
from sessions_app.models.compiled import planned_anew

# Finds by kind the keys of calls, `keys.listed`, None for none; nothing if they are too many.
FindCalls = Callable[[], Mapping[str, str | None] | None]
MOVING = (Status.RUNNING, Status.QUEUED)
# The states in which a session may have a line. The last one: it has failed, or cannot go on, for a known cause.
IS_STOPPED = Q(status__in=STOPPED)
IS_MOVING = Q(status__in=MOVING)
HAS_CAUSE = Q(failure__isnull=False) & (Q(status=Status.WAITING) | Q(status=Status.IDLE, phase=Phase.ERROR))


@planned_anew
def in_each_state(where: Q, *, limit: int) -> QuerySet[Session, Any]:
    """The keys of the sessions that meet the condition, and whether each is in the first of the states that a
    `Condition` names, in the second, and so on.
    """
    states = [ExpressionWrapper(state, BooleanField()) for state in (IS_STOPPED, IS_MOVING, HAS_CAUSE)]
    return Session.objects.filter(where).order_by().values_list("pk", *states, named=False)[:limit]


@planned_anew
def in_one_state(where: Q, *, limit: int) -> QuerySet[Session, Any]:
    """As `in_each_state`, of a condition of one state."""
    return Session.objects.filter(where).order_by().values_list("pk", Value(True), named=False)[:limit]


class Matches(Enum):
    """How many sessions meet a condition.

    FEW: those are read first for every kind of lines. SOME: a small part of all, with which the search for approvals
    and calls in doubt begins. MANY: others, of which the condition is asked of each line in its order; where they have
    changed since some time, of each line from then on.
    """

    FEW = auto()
    SOME = auto()
    MANY = auto()


@dataclass(frozen=True, slots=True)
class Named:
    """A few sessions, by the keys that were read because they met a condition.

    keys: `keys.listed`, None for none.
    status, phase: what is asked of each again, "" for nothing: another request may have moved it on.
    """

    keys: str | None
    status: str = ""
    phase: str = ""

    @property
    def where(self) -> Q:
        is_listed = in_list(self.keys, kind="uuid")
        if self.keys is None:
            return is_listed
        again = {name: value for name, value in (("status", self.status), ("phase", self.phase)) if value}
        # In this form, for the reason that `OfState.sessions` has.
        return is_listed & Q(opaque(Q(**again))) if again else is_listed


@dataclass(frozen=True, slots=True)
class OfState:
    """A condition on the sessions in one state.

    matches: how many sessions meet it.
    is_named: it names each session by its key. ``is_none``: it names none.
    may_be_first: only `SOME` sessions meet it, but many of the first calls in the inbox may be theirs.
    last: what is asked of a session too, but last, since hardly any call is of a session that meets ``where``. Only
    where not `MANY` sessions meet that, and not by `sessions`.
    """

    where: Q
    matches: Matches
    is_named: bool = False
    may_be_first: bool = False
    last: Q = field(default_factory=Q)
    is_none: bool = False

    @classmethod
    def of_named(cls, named: Named) -> Self:
        return cls(named.where, Matches.FEW, is_named=True, is_none=named.keys is None)

    def sessions(self, state: Q) -> QuerySet[Session]:
        """Those that meet the condition and are in the state. Of those that are named both were so when their keys were
        read, and the state is asked again: another request may have moved them on.
        """
        rows = Session.objects.filter(self.where).order_by()
        if not self.is_named:
            return rows.filter(state)
        # Of each of these rows, so that PostgreSQL does not read all that are in the state to find them.
        return rows.filter(opaque(state))

    def narrowed(self, where: Q, matches: Matches) -> Self:
        fewer = min(self.matches, matches, key=lambda each: each.value)
        return replace(self, where=self.where & where, matches=fewer, may_be_first=False)


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition on the sessions of the lines, for each of the states `IS_STOPPED`, `IS_MOVING` and `HAS_CAUSE`.

    is_cut: it leaves out sessions that match the filter: what is counted by it may be more.
    since: all that meet it have changed since then, if that is a part of it.
    calls: finds the keys of calls that may be lines, see `inbox_calls`; None where each kind of calls is searched.
    """

    stopped: OfState
    moving: OfState
    failed: OfState
    is_cut: bool = field(default=False, kw_only=True)
    since: datetime | None = field(default=None, kw_only=True)
    calls: FindCalls | None = field(default=None, kw_only=True, compare=False)

    @classmethod
    def of(cls, where: Q, matches: Matches = Matches.MANY) -> Self:
        """One condition on the sessions in all states."""
        each = OfState(where, matches)
        return cls(each, each, each)

    @classmethod
    def of_named(cls, keys: Sequence[str | None], status: str, phase: str) -> Self:
        """Of sessions by their keys in each of the states; the other parameters are those of `Named`."""
        return cls(*[OfState.of_named(Named(each, status, phase)) for each in keys])

    def found_calls(self) -> Mapping[str, str | None] | None:
        """What `calls` finds. One query, the first time."""
        return None if self.calls is None else self.calls()

    def narrowed(self, where: Q, matches: Matches) -> Self:
        """The condition and another one, which so many sessions meet."""
        states = (self.stopped, self.moving, self.failed)
        narrowed = [state.narrowed(where, matches) for state in states]
        return type(self)(*narrowed, is_cut=self.is_cut, since=self.since)
