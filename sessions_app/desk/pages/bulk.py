"""Bulk acts: how far each is, and what it could not do."""

from collections.abc import Iterable
from dataclasses import dataclass

from django.db.models import Count

from sessions_app.models import BulkAct, BulkItem

PAGE = 100
Outcome = BulkItem.Outcome


@dataclass(frozen=True, slots=True)
class Progress:
    """Numbers of sessions."""

    done: int = 0
    refused: int = 0
    stopped: int = 0
    pending: int = 0

    @property
    def total(self) -> int:
        return self.done + self.refused + self.stopped + self.pending

    @property
    def finished(self) -> bool:
        return not self.pending

    @property
    def percent(self) -> int:
        """100 only when nothing is left to do."""
        return (self.total - self.pending) * 100 // self.total if self.total else 100


def progress(act: BulkAct) -> Progress:
    """One grouped count."""
    return progresses([act])[act.pk]


def progresses(acts: Iterable[BulkAct]) -> dict[int, Progress]:
    """The same for many acts, by their keys: one query."""
    found: dict[int, dict[str, int]] = {act.pk: {} for act in acts}
    rows = BulkItem.objects.filter(act__in=found).order_by().values("act_id", "outcome")
    for row in rows.annotate(n=Count("pk")):
        found[row["act_id"]][row["outcome"] or "pending"] = row["n"]
    return {pk: Progress(**numbers) for pk, numbers in found.items()}


def acts(limit: int = 50) -> list[tuple[BulkAct, Progress]]:
    """The newest acts. Two queries."""
    rows = list(BulkAct.objects.select_related("assignee")[:limit])
    found = progresses(rows)
    return [(act, found[act.pk]) for act in rows]


@dataclass(frozen=True, slots=True)
class Page:
    items: list[BulkItem]
    next: int | None


def failures(act: BulkAct, *, after: int = 0, limit: int = PAGE) -> Page:
    """The sessions that it could not do, each with the reason. One query."""
    rows = act.items.filter(outcome=Outcome.REFUSED, pk__gt=after).select_related("session")
    found = list(rows.order_by("pk")[: limit + 1])
    return Page(found[:limit], found[limit - 1].pk if len(found) > limit else None)
