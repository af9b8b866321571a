"""Discarded branches: the parts of a session's branches that its current history does not show.

Every branch of the session is looked at, also one that left another discarded branch: its place in the current history
is the last position that both show.
"""

from collections.abc import Sequence
from uuid import UUID

from django.db.models import Count, Max, Q, QuerySet

from sessions_app.desk.pages.session.consequences import effects_among, without_effects_on
from sessions_app.desk.pages.session.context import SessionContext
from sessions_app.desk.pages.session.timeline_items import DiscardedItem
from sessions_app.models import Branch, CallStatus, Checkpoint, Event, EventKind, ModelCall, ToolCall
from sessions_app.models.compiled import compiled
from sessions_app.models.event import BESIDE_TURNS

_MOVES = (EventKind.REWOUND, EventKind.UNDONE, EventKind.REPAIRED)


def discarded_branches(
    context: SessionContext, *, after: int = 0, upto: int | None = None
) -> list[DiscardedItem]:
    """The branches with steps, failures or effects that the current history left at ``after < position <= upto``.

    Six queries; one where there is nothing discarded.
    """
    return [
        item
        for item in _items(context, after=after, upto=upto)
        if item.steps or item.failures or item.effects
    ]


def find(context: SessionContext, number: int) -> DiscardedItem | None:
    """The discarded part of the branch, also one without steps; None for a branch that is shown whole."""
    return next((item for item in _items(context) if item.branch == number), None)


@compiled
def _branches(session_id: UUID) -> QuerySet[Branch]:
    return Branch.objects.filter(session=session_id).select_related("created_by")


def _items(context: SessionContext, *, after: int = 0, upto: int | None = None) -> list[DiscardedItem]:
    branch = context.branch
    branches = {row.pk: row for row in context.mask.rows(_branches(context.session.pk))}
    if len(branches) < 2:
        return []
    left_at = {pk: branch.shared_until(other) for pk, other in branches.items() if pk != branch.pk}
    left_at = {
        pk: place for pk, place in left_at.items() if after < place and (upto is None or place <= upto)
    }
    if not left_at:
        return []
    begins = {pk: max(place, branches[pk].left_at) for pk, place in left_at.items()}
    beyond = Q(pk__in=[])
    for pk, first in begins.items():
        beyond |= Q(branch_id=pk, position__gte=first)
    # A step that has started has one reply of the agent's own generator; one that failed at its model call has none.
    model_calls = ModelCall.objects.filter(beyond, side_replies__isnull=True).order_by().values("branch_id")
    numbers = model_calls.annotate(
        steps=Count("pk", filter=Q(error="")), failures=Count("pk", filter=~Q(error=""))
    )
    counted = {row["branch_id"]: (row["steps"], row["failures"]) for row in numbers}
    ends = (
        Checkpoint.objects.filter(beyond)
        .exclude(kind=Checkpoint.Kind.PREPARED)
        .order_by()
        .values("branch_id")
    )
    newest: dict[int, int] = {row["branch_id"]: row["last"] for row in ends.annotate(last=Max("pk"))}
    calls = effects_among(ToolCall.objects.filter(beyond), context.session)
    calls = without_effects_on(branch, calls, after=min(left_at.values()))
    is_certain = Q(status=CallStatus.DONE)
    effects_by_branch = calls.order_by().values("branch_id")
    effects_by_branch = effects_by_branch.annotate(n=Count("pk"), certain=Count("pk", filter=is_certain))
    effects = {row["branch_id"]: (row["n"], row["certain"]) for row in effects_by_branch}
    # By the index of events beside turns: the session has as many others as it has turns.
    moves = context.mask.rows(
        Event.objects.filter(BESIDE_TURNS, branch__in=list(branches), kind__in=_MOVES).order_by("-position")
    )
    by_number = {row.number: row for row in branches.values()}
    items = []
    for pk, place in left_at.items():
        discarded = branches[pk]
        steps, failures = counted.get(pk, (0, 0))
        effects_here, certain = effects.get(pk, (0, 0))
        move = _discarding_move(moves, by_number, pk, begins[pk] + 1)
        items.append(
            DiscardedItem(
                position=place + 1,
                left_at=place,
                begins_at=begins[pk],
                branch=discarded.number,
                steps=steps,
                failures=failures,
                effects=effects_here,
                certain_effects=certain,
                newest=newest.get(pk),
                by=move.actor_name if move else str(discarded.created_by or ""),
                why=move.reason if move else discarded.reason,
                at=move.created_at if move else discarded.created_at,
                can_undo=branch.undo_to_id == pk,
                undone=move is not None and move.kind == EventKind.UNDONE,
                repaired=move is not None and move.kind == EventKind.REPAIRED,
            )
        )
    return items


def _discarding_move(
    moves: Sequence[Event], branches: dict[int, Branch], pk: int, position: int
) -> Event | None:
    """The last of the moves, newest first, that left a branch showing the row for one that does not show it."""
    for move in moves:
        source, target = (branches.get(move.data.get(key)) for key in ("from_branch", "to_branch"))
        if (
            source is not None
            and target is not None
            and source.sees(pk, position)
            and not target.sees(pk, position)
        ):
            return move
    return None
