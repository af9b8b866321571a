"""The steps in which an agent went from one phase to another, as the totals of checkpoints count these changes.

Each checkpoint has the totals of the history before it, so the number of a change differs between two checkpoints if
it lies between them. Only the newest rows where it can lie are read. If it lies in none of them, the newest change is
found among the earlier checkpoints by bisection, since in a history the number only grows.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.db.models import OuterRef, QuerySet, Subquery

from agentstate.names import STEP_KINDS
from sessions_app.models import Branch, Checkpoint, Event, EventKind, Phase, ToolCall
from sessions_app.models.compiled import compiled
from sessions_app.models.event import BESIDE_TURNS
from sessions_app.models.rows import BranchRowQuerySet, Ranges, visible

Totals = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Hit:
    """A row that matches. ``first`` and ``following`` are where its step and the next one begin on its own branch."""

    position: int
    branch_id: int
    first: int | None
    following: int | None


@dataclass(frozen=True, slots=True)
class Edges:
    """The changes between two phases that the branch shows; ``totals`` are those of its whole history."""

    branch: Branch
    source: str
    target: str
    totals: Totals

    def newest(self, *, upto: int | None, most: int) -> tuple[list[Hit], bool]:
        """Rows of the newest steps with such a change up to a position, newest first, and whether there are earlier
        ones. No row only if there is no such step.

        One query; where the change is none of the newest, two, and one for each step of the bisection. One for each row
        whose step began on another branch. No query where the history has no such change.
        """
        if not self._number(self.totals):
            return [], False
        hits, earlier, earliest = self._among_newest(upto, most)
        if earlier and not hits:
            hits, earlier, _ = self._among_newest(self._place_of(earlier, upto=earliest), most)
        return hits, earlier > 0

    def _among_newest(self, upto: int | None, most: int) -> tuple[list[Hit], int, int]:
        """The hits among the newest rows, how many changes lie before all these rows, and the first row's position."""
        rows, between = self._rows()
        newest = rows.newest_within(visible(self.branch, upto=upto), most)
        found = list(newest.values_list("position", "branch_id", "first", "following", *between))
        hits = []
        number = position = 0
        for position, branch_id, first, following, before, after in found:
            number = self._number(self._totals_before(position) if before is None else before)
            is_cut_off = between[1] == "next_totals" and self._is_left_at(branch_id, position)
            end = self._totals_after(branch_id, position) if after is None or is_cut_off else after
            if self._number(end) > number:
                hits.append(Hit(position, branch_id, first, following))
        return hits, number if len(found) == most else 0, position

    def _is_left_at(self, branch_id: int, position: int) -> bool:
        """Whether the history goes on on another branch, and what follows on this one is discarded."""
        return dict(self.branch.segments())[branch_id] == position

    def _totals_before(self, position: int) -> Totals:
        return _newest_totals.first(visible(self.branch, upto=position - 1)) or {}

    def _totals_after(self, branch_id: int, position: int) -> Totals:
        """Those of the next checkpoint that the history shows, where this branch has none."""
        if branch_id == self.branch.pk:
            return self.totals
        return _next_totals.first(visible(self.branch, after=position)) or self.totals

    def _rows(self) -> tuple[BranchRowQuerySet[Any], tuple[str, str]]:
        """Rows of which there is at least one where such a change lies, and the names of the totals around them."""
        around, itself = ("first_totals", "next_totals"), "totals"
        if self.target == Phase.DONE:
            return _annotated(Checkpoint.objects.filter(kind=Checkpoint.Kind.END)), ("first_totals", itself)
        if self.source in (Phase.IDLE, Phase.DONE):
            starts = Checkpoint.objects.filter(kind=Checkpoint.Kind.START)
            return _annotated(starts), ("previous_totals", itself)
        if Phase.ERROR in (self.source, self.target):
            return _annotated(Event.objects.filter(BESIDE_TURNS, kind=EventKind.FAILED)), around
        if self.source == Phase.REFLECTING:
            reflecting = Checkpoint.objects.filter(kind=Checkpoint.Kind.STEP, phase=Phase.REFLECTING)
            return _annotated(reflecting), (itself, "next_totals")
        return _annotated(ToolCall.objects.all()), around

    def _number(self, totals: Totals) -> int:
        edges: Mapping[str, int] = totals.get("edges", {})
        return edges.get(f"{self.source}>{self.target}", 0)

    def _place_of(self, number: int, *, upto: int) -> int:
        """The position of the first checkpoint that counts so many changes; the one at or before `upto` does."""
        low, high = 1, upto
        while low < high:
            middle = (low + high) // 2
            if self._number(self._totals_before(middle + 1)) < number:
                low = middle + 1
            else:
                high = middle
        return low


def _annotated(rows: BranchRowQuerySet[Any]) -> BranchRowQuerySet[Any]:
    """With where the step of each begins and the next one, and with the totals around it: by index probes."""
    on_branch = Checkpoint.objects.filter(branch=OuterRef("branch"))
    starts = on_branch.filter(kind__in=STEP_KINDS)
    first = starts.filter(position__lte=OuterRef("position")).order_by("-position")
    following = starts.filter(position__gt=OuterRef("position")).order_by("position")
    previous = on_branch.filter(position__lt=OuterRef("position")).order_by("-position")
    behind = on_branch.exclude(kind=Checkpoint.Kind.PREPARED).filter(position__gt=OuterRef("position"))
    return rows.annotate(
        first=Subquery(first.values("position")[:1]),
        following=Subquery(following.values("position")[:1]),
        first_totals=Subquery(first.values("totals")[:1]),
        previous_totals=Subquery(previous.values("totals")[:1]),
        next_totals=Subquery(behind.order_by("position").values("totals")[:1]),
    )


@compiled
def _newest_totals(where: Ranges) -> QuerySet[Checkpoint, Any]:
    return Checkpoint.objects.newest_within(where, 1).values_list("totals", flat=True)


@compiled
def _next_totals(where: Ranges) -> QuerySet[Checkpoint, Any]:
    rows = Checkpoint.objects.exclude(kind=Checkpoint.Kind.PREPARED)
    return rows.oldest_within(where, 1).values_list("totals", flat=True)
