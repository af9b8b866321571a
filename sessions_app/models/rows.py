"""What every row on a branch has in common, and how a branch's visible rows are read."""

from typing import Self, TypeVar

from django.db import models
from django.db.models import Q

from sessions_app.models.branch import Branch

Row = TypeVar("Row", bound=models.Model)


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


class BranchRow(models.Model):
    """A row of the append-only history: ``position`` is unique within its session and never reused."""

    branch = models.ForeignKey(Branch, on_delete=models.CASCADE, db_index=False, related_name="%(class)ss")
    position = models.PositiveBigIntegerField()

    class Meta:
        abstract = True
        ordering = ["position"]
