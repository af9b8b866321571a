"""A branch: one segment of a session's history.

A branch never changes once its first row is there. Its ``lineage`` says which rows are visible on it:
``[[branch id, last visible position], ...]`` of its ancestors, oldest first; its own rows come after.
"""

from uuid import UUID

from django.conf import settings
from django.db import models
from django.utils import timezone

from sessions_app.models.compiled import compiled
from sessions_app.models.loading import LoadedModel
from sessions_app.models.session import Session


class Branch(LoadedModel):
    session = models.ForeignKey(Session, on_delete=models.CASCADE, related_name="branches")
    number = models.PositiveIntegerField(help_text="1 for the first of its session.")
    parent = models.ForeignKey(
        "self", null=True, blank=True, on_delete=models.RESTRICT, related_name="children"
    )
    undo_to = models.ForeignKey(
        "self",
        null=True,
        blank=True,
        on_delete=models.RESTRICT,
        related_name="+",
        help_text="The branch that the session was on before it was rewound to this one.",
    )
    left_at = models.PositiveBigIntegerField(default=0, help_text="The position at which it left its parent.")
    lineage = models.JSONField(default=list, blank=True)
    left_state = models.JSONField(
        null=True, blank=True, help_text="The session's run fields when it was moved away from this branch."
    )
    created_at = models.DateTimeField(default=timezone.now)
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    reason = models.TextField(blank=True, default="")

    class Meta:
        ordering = ["number"]
        verbose_name_plural = "branches"
        constraints = [models.UniqueConstraint(fields=["session", "number"], name="branch_number_once")]

    def __str__(self) -> str:
        return f"branch {self.number}"

    def segments(self) -> list[tuple[int, int | None]]:
        """``(branch id, last visible position)``, oldest first; None for this branch, which is open."""
        return [(pk, last) for pk, last in self.lineage] + [(self.pk, None)]

    @property
    def left_another_branch(self) -> bool:
        """Whether it was made by leaving another branch, of this session or of the one that it was forked from."""
        return bool(self.lineage) or self.undo_to_id is not None

    def sees(self, branch_id: int, position: int) -> bool:
        """Whether the row at that place is part of the history that this branch shows."""
        return any(pk == branch_id and (last is None or position <= last) for pk, last in self.segments())

    def shared_until(self, other: "Branch") -> int:
        """The last position up to which both branches show the same history, 0 if they share none."""
        shared = 0
        for (pk, last), (other_pk, other_last) in zip(self.segments(), other.segments(), strict=False):
            if pk != other_pk:
                break
            ends = [position for position in (last, other_last) if position is not None]
            shared = min(ends, default=shared)
            if last != other_last:
                break
        return shared

    def lineage_at(self, position: int) -> list[list[int]]:
        """The lineage of a branch that leaves this one at ``position``. Segments that end up empty are dropped."""
        cut = [[pk, min(last, position)] for pk, last in self.lineage]
        lineage: list[list[int]] = []
        for pk, last in [*cut, [self.pk, position]]:
            if not lineage or last > lineage[-1][1]:
                lineage.append([pk, last])
        return lineage


def next_number(session: Session) -> int:
    """That of a branch that is about to be made; the session is locked. One query."""
    return (_newest_number.first(session.pk) or 0) + 1


def newest_number(session_id: UUID) -> models.QuerySet[Branch, int]:
    """That of the session's newest branch, as a query."""
    return Branch.objects.filter(session=session_id).order_by("-number").values_list("number", flat=True)[:1]


_newest_number = compiled(newest_number)
