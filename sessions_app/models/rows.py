"""What every row on a branch has in common, and how a branch's visible rows are read."""

from collections.abc import Sequence
from typing import Any, Self, TypeVar

from django.db import models
from django.db.models import Q
from django.db.models.expressions import RawSQL

from sessions_app.models.branch import Branch
from sessions_app.models.loading import LoadedModel
from sessions_app.models.selects import NO_ROWS, as_sql, union

Row = TypeVar("Row", bound=models.Model)
# So many of the first ranges, and so many of the last, are searched for the first rows each by itself.
_FIRST_PARTS, _LAST_PARTS = 8, 24

Ranges = tuple[tuple[int, int, int | None], ...]


def visible(branch: Branch, *, after: int = 0, upto: int | None = None) -> Ranges:
    """Where the rows lie that ``branch`` shows with ``after < position <= upto``, one range per segment.

    A range is a branch id, the position behind which its rows count, and the last one that does, None for all.
    """
    ranges: list[tuple[int, int, int | None]] = []
    floor = after
    for pk, last in branch.segments():
        end = last if upto is None else upto if last is None else min(last, upto)
        if end is None:
            ranges.append((pk, floor, None))
        elif end > floor:
            ranges.append((pk, floor, end))
            floor = end
    return tuple(ranges)


class BranchRowQuerySet(models.QuerySet[Row]):
    def visible_on(self, branch: Branch, *, after: int = 0, upto: int | None = None) -> Self:
        """The rows that ``branch`` shows with ``after < position <= upto``."""
        return self.within(visible(branch, after=after, upto=upto))

    def within(self, ranges: Ranges) -> Self:
        """The rows in these ranges, as `visible` gives them."""
        found = Q(pk__in=[])
        for branch_id, after, upto in ranges:
            if upto is None:
                found |= Q(branch_id=branch_id, position__gt=after)
            else:
                found |= Q(branch_id=branch_id, position__gt=after, position__lte=upto)
        return self.filter(found)

    def newest_within(self, ranges: Ranges, limit: int) -> "BranchRowQuerySet[Any]":
        """The last of the rows in these ranges, newest first."""
        return self._first_within(ranges, "-position", limit)

    def oldest_within(self, ranges: Ranges, limit: int) -> "BranchRowQuerySet[Any]":
        """The first of the rows in these ranges, oldest first."""
        return self._first_within(ranges, "position", limit)

    def newest_of_each(self, ranges: Ranges, limit: int) -> "BranchRowQuerySet[Any]":
        """The last rows of each of these ranges, in any order. The ranges are a few hundred at most."""
        return self._of_each([(each,) for each in ranges], "-position", limit)

    def _first_within(self, ranges: Ranges, order: str, limit: int) -> "BranchRowQuerySet[Any]":
        """Of several ranges together a database would read and sort all rows, however few are wanted: an index has them
        in order only within each.
        """
        rows = self.within(ranges) if len(ranges) < 2 else self._of_each(_searched(ranges), order, limit)
        return rows.order_by(order)[:limit]

    def _of_each(self, parts: Sequence[Ranges], order: str, limit: int) -> Self:
        selects = [as_sql(self.within(part).order_by(order).values("pk")[:limit]) for part in parts]
        sql, values = union(selects)
        keys: Any = RawSQL(sql, values) if sql != NO_ROWS else []  # noqa: S611 - selects of our own
        return self.filter(pk__in=keys)


def _searched(ranges: Ranges) -> list[Ranges]:
    """The ranges, each by itself but for those in the middle of very many: these are the short segments of a session
    that was rewound again and again.
    """
    middle = ranges[_FIRST_PARTS:-_LAST_PARTS] if len(ranges) > _FIRST_PARTS + _LAST_PARTS + 1 else ()
    if not middle:
        return [(each,) for each in ranges]
    apart = (*ranges[:_FIRST_PARTS], *ranges[-_LAST_PARTS:])
    return [*((each,) for each in apart), middle]


class BranchRow(LoadedModel):
    """A row of the append-only history: ``position`` is unique within its session and never reused."""

    branch = models.ForeignKey(Branch, on_delete=models.CASCADE, db_index=False, related_name="%(class)ss")
    position = models.PositiveBigIntegerField()

    class Meta:
        abstract = True
        ordering = ["position"]
