"""What rewinds left behind: the parts of a session's branches that its present history does not show."""

from collections.abc import Iterable

from django.db.models import Count, Max, Q

from sessions_app.access.masking import Mask
from sessions_app.desk.pages.session.timeline_items import TailItem
from sessions_app.models import Branch, Checkpoint, Event, ModelCall, Session


def left_behind(
    session: Session, branch: Branch, *, mask: Mask, after: int = 0, upto: int | None = None
) -> list[TailItem]:
    """The tails that left what ``branch`` shows at ``after < position <= upto``: four queries, or one."""
    branches = {b.pk: b for b in Branch.objects.filter(session=session).select_related("created_by")}
    if len(branches) < 2:
        return []
    visible = dict(branch.segments())
    where: dict[int, tuple[int, Branch, bool]] = {}
    for other in branches.values():
        if other.pk in visible:
            last = visible[other.pk]
            if last is not None:
                where[other.pk] = (last, _who_left(other, branches.values(), visible), False)
        elif other.parent_id in visible and _reaches(visible[other.parent_id], other.left_at):
            where[other.pk] = (other.left_at, other, True)
    where = {pk: left for pk, left in where.items() if after < left[0] and (upto is None or left[0] <= upto)}
    if not where:
        return []
    beyond = Q(pk__in=[])
    for pk, (left_at, _, _) in where.items():
        beyond |= Q(branch_id=pk, position__gte=left_at)
    # A step that was begun has one reply of the agent's own.
    replies = ModelCall.objects.filter(beyond, error="", aside__isnull=True).order_by().values("branch_id")
    steps: dict[int, int] = {row["branch_id"]: row["n"] for row in replies.annotate(n=Count("pk"))}
    ends = (
        Checkpoint.objects.filter(beyond)
        .exclude(kind=Checkpoint.Kind.PREPARED)
        .order_by()
        .values("branch_id")
    )
    newest: dict[int, int] = {row["branch_id"]: row["last"] for row in ends.annotate(last=Max("pk"))}
    repairs = Event.objects.filter(branch__in=branches, kind="repaired").order_by()
    repaired = set(repairs.values_list("branch", flat=True))
    return [
        TailItem(
            position=left_at + 1,
            left_at=left_at,
            branch=branches[pk].number,
            steps=steps.get(pk, 0),
            newest=newest.get(pk),
            by=str(by.created_by or ""),
            why=mask.text(by.reason),
            at=by.created_at,
            can_undo=branch.undo_to_id == pk,
            undone=undone,
            repaired=not undone and by.pk in repaired,
        )
        for pk, (left_at, by, undone) in where.items()
    ]


def made_by_repair(branch: Branch) -> bool:
    """Whether the session came to the branch by a repair, not by a rewind."""
    return Event.objects.filter(branch=branch, kind="repaired").exists()


def _reaches(last: int | None, position: int) -> bool:
    return last is None or position <= last


def _who_left(branch: Branch, all_branches: Iterable[Branch], visible: dict[int, int | None]) -> Branch:
    """The branch by which the visible history went away from ``branch``: it says who did it and why."""
    children = [
        b for b in all_branches if b.pk in visible and (b.parent_id == branch.pk or b.undo_to_id == branch.pk)
    ]
    return min(children, key=lambda child: child.number, default=branch)
