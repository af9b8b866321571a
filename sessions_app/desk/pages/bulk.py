"""The bulk actions: how far each is, and what it could not do."""

from collections.abc import Sequence
from dataclasses import dataclass

from django.db.models import Count

from sessions_app.access.action import Action
from sessions_app.access.masking import Mask
from sessions_app.action_list import ACTIONS
from sessions_app.desk.pages.context import PageContext
from sessions_app.finding import stuck
from sessions_app.models import BulkAction, BulkItem, Session

PAGE = 100
MOST_LISTED = 50
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


def progress(bulk: BulkAction) -> Progress:
    """One query."""
    return _progress_of([bulk])[bulk.pk]


@dataclass(frozen=True, slots=True)
class Started:
    """A bulk action in the list of them."""

    bulk: BulkAction
    action: Action
    progress: Progress


def bulk_actions(mask: Mask) -> list[Started]:
    """The newest bulk actions. Two queries."""
    rows = mask.rows(BulkAction.objects.select_related("assignee")[:MOST_LISTED])
    progress_of = _progress_of(rows)
    return [Started(row, ACTIONS[row.kind], progress_of[row.pk]) for row in rows]


@dataclass(frozen=True, slots=True)
class Page:
    """``next`` is the ``after`` of the next page, None on the last."""

    items: list[BulkItem]
    next: int | None


def failures(context: PageContext, bulk: BulkAction, *, after: int = 0, limit: int = PAGE) -> Page:
    """The sessions that it could not do, masked, each with the reason. One query."""
    rows = bulk.items.filter(outcome=Outcome.REFUSED, pk__gt=after).select_related("session")
    items = context.mask.rows(rows.order_by("pk")[: limit + 1])
    return Page(items[:limit], items[limit - 1].pk if len(items) > limit else None)


@dataclass(frozen=True, slots=True)
class DoneSession:
    """A session that it has changed, masked, with the tone and the label of what it does now."""

    session: Session
    tone: str
    label: str


def done(context: PageContext, bulk: BulkAction) -> list[DoneSession]:
    """The first sessions that it has changed. One query."""
    rows = bulk.items.filter(outcome=Outcome.DONE).select_related("session")
    items = context.mask.rows(rows.order_by("pk")[:PAGE])
    return [DoneSession(item.session, *stuck.status_label(item.session, context.now)) for item in items]


def _progress_of(bulk_actions: Sequence[BulkAction]) -> dict[int, Progress]:
    """By primary key: one query."""
    numbers: dict[int, dict[str, int]] = {bulk.pk: {} for bulk in bulk_actions}
    rows = BulkItem.objects.filter(bulk_action__in=numbers).order_by().values("bulk_action_id", "outcome")
    for row in rows.annotate(n=Count("pk")):
        numbers[row["bulk_action_id"]][row["outcome"] or "pending"] = row["n"]
    return {pk: Progress(**counted) for pk, counted in numbers.items()}
