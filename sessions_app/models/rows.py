"""What every row on a branch has in common, and how a branch's visible rows are read."""

from typing import Self, TypeVar

from django.db import models
from django.db.models import Q

from sessions_app.models.branch import Branch

Row = TypeVar("Row", bound=models.Model)


class BranchRowQuerySet(models.QuerySet[Row]):
    def visible_on(self, branch: Branch, *, after: int = 0, upto: int | None = None) -> Self:
        """The rows that ``branch`` shows with ``after < position <= upto``: one range per segment."""
        ranges = Q(pk__in=[])
        floor = after
        for pk, last in branch.segments():
            end = last if upto is None else upto if last is None else min(last, upto)
            if end is None:
                ranges |= Q(branch_id=pk, position__gt=floor)
            elif end > floor:
                ranges |= Q(branch_id=pk, position__gt=floor, position__lte=end)
                floor = end
        return self.filter(ranges)


class BranchRow(models.Model):
    """A row of the append-only history: ``position`` is unique within its session and never reused."""

    branch = models.ForeignKey(Branch, on_delete=models.CASCADE, db_index=False, related_name="%(class)ss")
    position = models.PositiveBigIntegerField()

    class Meta:
        abstract = True
        ordering = ["position"]
