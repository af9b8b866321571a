"""The filters of the timeline: steps by what happened in them, by phase, or by a change of phase."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from django.db.models import Q, QuerySet

from agentstate.names import STEP_KINDS
from sessions_app.models import Branch, CallStatus, Checkpoint, Event, EventKind, ModelCall, Phase, ToolCall
from sessions_app.models.event import PEOPLES_KINDS

# Messages are shown on the timeline by themselves.
SHOWN_AS_MESSAGES = (EventKind.STARTED, EventKind.MESSAGE)
_HITS_PER_STEP = 4


@dataclass(frozen=True, slots=True)
class TimelineFilter:
    """``kind`` is errors, tools, people, tool, phase or edge; ``value`` names the tool, the phase, or both phases."""

    kind: str
    value: str = ""

    @property
    def query(self) -> str:
        """The query string that asks for it."""
        return f"show={self.kind}" if not self.value else f"{self.kind}={self.value}"

    @property
    def label(self) -> str:
        """What it shows, to be read after "There are no"."""
        match self.kind:
            case "errors":
                return "steps with errors"
            case "tools":
                return "steps that called tools"
            case "people":
                return "what people did"
            case "tool":
                return f"steps that called {self.value}"
            case "phase":
                return f"steps in which the agent was {self.value}"
            case _:
                return "steps in which the agent went from {} to {}".format(*self.value.split("-"))


def parse(query: Mapping[str, str]) -> TimelineFilter | None:
    """The filter that a page's query string asks for; None for none and for an unknown one."""
    if (show := query.get("show", "")) in ("errors", "tools", "people"):
        return TimelineFilter(show)
    if tool := query.get("tool", ""):
        return TimelineFilter("tool", tool)
    if (phase := query.get("phase", "")) in Phase.values:
        return TimelineFilter("phase", phase)
    ends = query.get("edge", "").split("-")
    if len(ends) == 2 and all(end in Phase.values for end in ends):
        return TimelineFilter("edge", "-".join(ends))
    return None


def matching_steps(
    branch: Branch, only: TimelineFilter, *, before: int | None, limit: int
) -> tuple[list[tuple[int, int | None]], list[Event], bool]:
    """``(first, last)`` positions of the newest steps that match, or the matching events, and whether there are more.

    At most four queries.
    """
    upto = None if before is None else before - 1
    if only.kind == "people":
        events = list(
            Event.objects.visible_on(branch, upto=upto)
            .filter(Q(actor__isnull=False) | Q(kind__in=PEOPLES_KINDS))
            .exclude(kind__in=SHOWN_AS_MESSAGES)
            .order_by("-position")[: limit + 1]
        )
        return [], events[:limit], len(events) > limit
    hits = _hits(branch, only, upto, limit * _HITS_PER_STEP)
    if not hits:
        return [], [], False
    starts = list(
        Checkpoint.objects.visible_on(branch)
        .filter(kind__in=STEP_KINDS)
        .order_by("position")
        .values_list("position", flat=True)
    )
    matching = sorted({index for hit in hits if (index := bisect_right(starts, hit) - 1) >= 0}, reverse=True)
    more = len(matching) > limit or len(hits) == limit * _HITS_PER_STEP
    spans = [(starts[i], starts[i + 1] if i + 1 < len(starts) else None) for i in matching[:limit]]
    return [(first, None if end is None else end - 1) for first, end in reversed(spans)], [], more


def _hits(branch: Branch, only: TimelineFilter, upto: int | None, limit: int) -> list[int]:
    """Positions of what the filter asks for, newest first, at most ``limit``."""
    calls = ToolCall.objects.visible_on(branch, upto=upto)
    checkpoints = Checkpoint.objects.visible_on(branch, upto=upto)
    starts = checkpoints.filter(kind=Checkpoint.Kind.START)
    reflecting = checkpoints.filter(kind=Checkpoint.Kind.STEP, phase=Phase.REFLECTING)
    ends = checkpoints.filter(kind=Checkpoint.Kind.END)

    def newest(places: Iterable[int]) -> list[int]:
        return sorted(places, reverse=True)[:limit]

    def positions(rows: QuerySet[Any]) -> list[int]:
        return list(rows.order_by("-position").values_list("position", flat=True)[:limit])

    def errors() -> list[int]:
        failed = positions(calls.filter(status__in=(CallStatus.FAILED, CallStatus.REJECTED)))
        models = positions(ModelCall.objects.visible_on(branch, upto=upto).exclude(error=""))
        failures = Event.objects.filter(kind__in=(EventKind.FAILED, EventKind.GAVE_UP))
        events = positions(failures.visible_on(branch, upto=upto))
        return newest([*failed, *models, *events])

    target = only.value if only.kind == "phase" else only.value.partition("-")[2]
    source = only.value.partition("-")[0] if only.kind == "edge" else ""
    if only.kind == "errors" or target == Phase.ERROR:
        return errors()
    if only.kind == "tool":
        return positions(calls.filter(tool=only.value))
    if (
        only.kind == "tools"
        or target == Phase.EXECUTING
        or (source, target) == (Phase.EXECUTING, Phase.REFLECTING)
    ):
        return positions(calls)
    if target == Phase.REFLECTING:
        return positions(reflecting)
    if target == Phase.DONE:
        # The step that ended the turn lies before its checkpoint.
        return [position - 1 for position in positions(ends)]
    if (source, target) == (Phase.REFLECTING, Phase.PLANNING) or (target == Phase.PLANNING and not source):
        called = positions(calls)
        again = _followed(positions(reflecting), called)
        return again if source else newest([*positions(starts), *again])
    return positions(starts)


def _followed(starts: list[int], calls: list[int]) -> list[int]:
    """Those of ``starts`` (newest first) that have one of ``calls`` before the next start."""
    ascending = sorted(calls)
    followed, end = [], float("inf")
    for start in starts:
        index = bisect_left(ascending, start)
        if index < len(ascending) and ascending[index] < end:
            followed.append(start)
        end = start
    return followed
