"""The filters of the timeline: steps by what happened in them, by phase, or by a change of phase."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from django.db.models import OuterRef, Q, QuerySet, Subquery

from agentstate.names import FAILED_CALL_STATES, STEP_KINDS
from sessions_app.access.masking import Mask
from sessions_app.desk.pages.session.timeline_edges import Edges, Hit
from sessions_app.finding.counting import Count, count_each, up_to_most
from sessions_app.models import Branch, Checkpoint, Event, EventKind, Message, ModelCall, Phase, ToolCall
from sessions_app.models.compiled import compiled
from sessions_app.models.event import BESIDE_TURNS, PEOPLES_KINDS
from sessions_app.models.rows import BranchRowQuerySet, Ranges, visible

_HITS_PER_STEP = 4
# The last position of a step that has not ended.
_OPEN = 2**63 - 1


@dataclass(frozen=True, slots=True)
class TimelineFilter:
    """``kind`` is errors, tools, people, tool, phase or edge; ``value`` names the tool, the phase, or both phases."""

    kind: str
    value: str = ""

    @property
    def parameters(self) -> dict[str, str]:
        """Those of the address that asks for it."""
        return {self.kind: self.value} if self.value else {"show": self.kind}

    @property
    def empty(self) -> str:
        """What stands in place of the steps where none matches."""
        match self.kind:
            case "people":
                return "No actions by people yet."
            case "errors":
                return "No errors so far."
            case "tools":
                return "No tool calls yet."
        return f"No {self.label}."

    @property
    def label(self) -> str:
        """What it shows."""
        match self.kind:
            case "errors":
                return "steps with errors"
            case "tools":
                return "steps that called tools"
            case "people":
                return "actions by people"
            case "tool":
                return f"steps that called {self.value}"
            case "phase":
                return f"steps in which the agent was {self.value}"
            case _:
                return "steps in which the agent went from {} to {}".format(*self.value.split("-"))


def events_of_people() -> BranchRowQuerySet[Event]:
    """What people did except sending messages, which `messages_of_people` gives with their texts."""
    return Event.objects.filter(BESIDE_TURNS, Q(actor__isnull=False) | Q(kind__in=PEOPLES_KINDS))


def messages_of_people() -> BranchRowQuerySet[Message]:
    """What people with an account wrote. Other messages are the customer's, also those that an account typed in."""
    return Message.objects.filter(role=Message.Role.USER, from_customer=False).exclude(author="")


def count_of_people(branch: Branch) -> Count:
    """How many events and messages the filter by people shows. One query."""
    where = visible(branch)
    selects = [_events_to_count.sql_with_params(where), _messages_to_count.sql_with_params(where)]
    counts = count_each(selects, prepared=True)
    return Count.of(sum(count.number + count.more for count in counts))


@compiled
def _events_to_count(where: Ranges) -> QuerySet[Event, int]:
    return up_to_most(events_of_people().within(where))


@compiled
def _messages_to_count(where: Ranges) -> QuerySet[Message, int]:
    return up_to_most(messages_of_people().within(where))


def parse(query: Mapping[str, str]) -> TimelineFilter | None:
    """The filter that a page's query string asks for; None for none and for an unknown one."""
    if (show := query.get("show", "")) in ("errors", "tools", "people"):
        return TimelineFilter(show)
    if tool := query.get("tool", ""):
        # By a hidden name nothing is found: the answer would tell whether it was guessed.
        return TimelineFilter("tool", Mask.configured().tool(tool))
    if (phase := query.get("phase", "")) in Phase.values:
        return TimelineFilter("phase", phase)
    ends = query.get("edge", "").split("-")
    if len(ends) == 2 and all(end in Phase.values for end in ends):
        return TimelineFilter("edge", "-".join(ends))
    return None


def matching_steps(
    branch: Branch,
    only: TimelineFilter,
    *,
    before: int | None,
    limit: int,
    totals: Mapping[str, Any],
) -> tuple[list[tuple[int, int | None]], list[Event | Message], bool]:
    """``(first, last)`` positions of the newest steps that match, or the matching rows, and whether there are more.

    At most four queries, and two for each branch that was left in the middle of a matching step. For a change of phase,
    and for planning in a history with errors, see also `timeline_edges`.

    :param totals: Those of the history that the branch shows.
    """
    upto = None if before is None else before - 1
    if only.kind == "people":
        where = visible(branch, upto=upto)
        events = events_of_people().newest_within(where, limit + 1)
        messages = messages_of_people().newest_within(where, limit + 1)
        rows: list[Event | Message] = sorted(
            chain(events, messages), key=lambda row: row.position, reverse=True
        )
        return [], rows[:limit], len(rows) > limit
    most = limit * _HITS_PER_STEP
    if only.kind == "edge":
        source, _, target = only.value.partition("-")
        hits, more = Edges(branch, source, target, totals).newest(upto=upto, most=most)
    else:
        hits = _Hits(branch, upto, most, totals).of(only)
        more = len(hits) == most
    spans = sorted({span for hit in hits if (span := _span(branch, hit)) is not None}, reverse=True)
    more = more or len(spans) > limit
    shown = [(first, None if last == _OPEN else last) for first, last in reversed(spans[:limit])]
    return shown, [], more


def _span(branch: Branch, hit: Hit) -> tuple[int, int] | None:
    """The first and the last position of the step that the hit lies in; None before the first step of a session."""
    last = dict(branch.segments())[hit.branch_id]
    first, following = hit.first, hit.following
    if first is None:  # the step began on the branch that this one left
        first = _newest_start(branch, hit.position)
    if following is None or (last is not None and following > last):
        following = _start_after(branch, hit.position)
    return None if first is None else (first, _OPEN if following is None else following - 1)


def _newest_start(branch: Branch, position: int) -> int | None:
    starts = Checkpoint.objects.filter(kind__in=STEP_KINDS).newest_within(visible(branch, upto=position), 1)
    return starts.values_list("position", flat=True).first()


def _start_after(branch: Branch, position: int) -> int | None:
    starts = Checkpoint.objects.filter(kind__in=STEP_KINDS).oldest_within(visible(branch, after=position), 1)
    return starts.values_list("position", flat=True).first()


@dataclass(frozen=True, slots=True)
class _Hits:
    """What a filter asks for among the rows that the branch shows up to a position: the newest ``most`` of them."""

    branch: Branch
    upto: int | None
    most: int
    totals: Mapping[str, Any]

    def of(self, only: TimelineFilter) -> list[Hit]:
        """The hits, newest first."""
        if only.kind == "errors":
            return self._errors()
        if only.kind == "phase" and only.value == Phase.ERROR:
            return self._newest(Event.objects.filter(BESIDE_TURNS, kind=EventKind.FAILED))
        calls = ToolCall.objects.all()
        if only.kind == "tool":
            return self._newest(calls.filter(tool=only.value))
        if only.kind == "tools" or only.value == Phase.EXECUTING:
            return self._newest(calls)
        starts = Checkpoint.objects.filter(kind=Checkpoint.Kind.START)
        reflecting = Checkpoint.objects.filter(kind=Checkpoint.Kind.STEP, phase=Phase.REFLECTING)
        if only.value == Phase.REFLECTING:
            return self._newest(reflecting)
        if only.value == Phase.DONE:
            # Before the end of a turn lies the step that ended it.
            return self._newest(Checkpoint.objects.filter(kind=Checkpoint.Kind.END))
        if only.value == Phase.PLANNING:
            # A step begins to plan again if it calls a tool after it has reflected, or goes on after an error.
            spans = [_span(self.branch, hit) for hit in self._newest(calls)]
            with_calls = {span[0] for span in spans if span is not None}
            again = [hit for hit in self._newest(reflecting) if hit.position in with_calls]
            resumed = Edges(self.branch, Phase.ERROR, Phase.PLANNING, self.totals)
            after_errors, _ = resumed.newest(upto=self.upto, most=self.most)
            return self._merge(self._newest(starts), again, after_errors)
        return self._newest(starts)

    def _errors(self) -> list[Hit]:
        return self._merge(
            self._newest(ToolCall.objects.filter(status__in=FAILED_CALL_STATES)),
            self._newest(ModelCall.objects.exclude(error="")),
            self._newest(Event.objects.filter(BESIDE_TURNS, kind__in=(EventKind.FAILED, EventKind.GAVE_UP))),
        )

    def _newest(self, rows: BranchRowQuerySet[Any]) -> list[Hit]:
        """The newest of the rows, each with its step found by two index probes. One query."""
        starts = Checkpoint.objects.filter(branch=OuterRef("branch"), kind__in=STEP_KINDS)
        before = starts.filter(position__lte=OuterRef("position")).order_by("-position")
        after = starts.filter(position__gt=OuterRef("position")).order_by("position")
        annotated = rows.annotate(
            first=Subquery(before.values("position")[:1]), following=Subquery(after.values("position")[:1])
        )
        newest = annotated.newest_within(visible(self.branch, upto=self.upto), self.most)
        return [Hit(*row) for row in newest.values_list("position", "branch_id", "first", "following")]

    def _merge(self, *hits: list[Hit]) -> list[Hit]:
        merged = sorted(
            (hit for hits_of_kind in hits for hit in hits_of_kind), key=lambda hit: hit.position, reverse=True
        )
        return merged[: self.most]
