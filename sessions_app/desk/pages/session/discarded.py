"""Discarded branches: the parts of a session's branches that its present history does not show."""

from collections.abc import Iterable

from django.db.models import Count, Max, Q

from sessions_app.desk.pages.session.context import SessionContext
from sessions_app.desk.pages.session.timeline_items import DiscardedItem
from sessions_app.models import Branch, Checkpoint, Event, EventKind, ModelCall


def discarded_branches(
    context: SessionContext, *, after: int = 0, upto: int | None = None
) -> list[DiscardedItem]:
    """The branches that were left at ``after < position <= upto`` of the present history.

    Four queries; one where there is nothing discarded.
    """
    branch = context.branch
    rows = Branch.objects.filter(session=context.session).select_related("created_by")
    branches = {row.pk: row for row in context.mask.rows(rows)}
    if len(branches) < 2:
        return []
    visible = dict(branch.segments())
    # By the branch's key: the position where the history left it, the branch made then, and whether by undoing.
    departures: dict[int, tuple[int, Branch, bool]] = {}
    for other in branches.values():
        if other.pk in visible:
            last = visible[other.pk]
            if last is not None:
                departures[other.pk] = (last, _successor(other, branches.values(), visible), False)
        elif other.parent_id in visible and _reaches(visible[other.parent_id], other.left_at):
            departures[other.pk] = (other.left_at, other, True)
    departures = {
        pk: place
        for pk, place in departures.items()
        if after < place[0] and (upto is None or place[0] <= upto)
    }
    if not departures:
        return []
    beyond = Q(pk__in=[])
    for pk, (left_at, _, _) in departures.items():
        beyond |= Q(branch_id=pk, position__gte=left_at)
    # A step that has started has one reply of the agent's own generator.
    replies = (
        ModelCall.objects.filter(beyond, error="", side_replies__isnull=True).order_by().values("branch_id")
    )
    steps: dict[int, int] = {row["branch_id"]: row["n"] for row in replies.annotate(n=Count("pk"))}
    ends = (
        Checkpoint.objects.filter(beyond)
        .exclude(kind=Checkpoint.Kind.PREPARED)
        .order_by()
        .values("branch_id")
    )
    newest: dict[int, int] = {row["branch_id"]: row["last"] for row in ends.annotate(last=Max("pk"))}
    repairs = Event.objects.filter(branch__in=branches, kind=EventKind.REPAIRED).order_by()
    repaired = set(repairs.values_list("branch", flat=True))
    return [
        DiscardedItem(
            position=left_at + 1,
            left_at=left_at,
            branch=branches[pk].number,
            steps=steps.get(pk, 0),
            newest=newest.get(pk),
            by=str(successor.created_by or ""),
            why=successor.reason,
            at=successor.created_at,
            can_undo=branch.undo_to_id == pk,
            undone=undone,
            repaired=not undone and successor.pk in repaired,
        )
        for pk, (left_at, successor, undone) in departures.items()
    ]


def made_by_repair(branch: Branch) -> bool:
    """Whether the session came to the branch by a repair, not by a rewind. One query."""
    return Event.objects.filter(branch=branch, kind=EventKind.REPAIRED).exists()


def _reaches(last: int | None, position: int) -> bool:
    return last is None or position <= last


def _successor(branch: Branch, all_branches: Iterable[Branch], visible: dict[int, int | None]) -> Branch:
    """The branch by which the visible history left ``branch``: it says who did that, and why."""
    children = [
        other
        for other in all_branches
        if other.pk in visible and (other.parent_id == branch.pk or other.undo_to_id == branch.pk)
    ]
    return min(children, key=lambda child: child.number, default=branch)
