"""The audit trail: what a person or the machinery did to a session, when and why. Only ever inserted."""

from typing import ClassVar

from django.conf import settings
from django.db import models
from django.utils import timezone

from sessions_app.models.branch import Branch
from sessions_app.models.rows import BranchRowQuerySet
from sessions_app.models.session import Session


class Event(models.Model):
    session = models.ForeignKey(Session, on_delete=models.CASCADE, related_name="events")
    branch = models.ForeignKey(
        Branch, null=True, on_delete=models.CASCADE, db_index=False, related_name="events"
    )
    position = models.PositiveBigIntegerField()
    kind = models.CharField(max_length=30)
    actor = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    actor_name = models.CharField(
        max_length=150,
        blank=True,
        default="",
        help_text="Kept when the account is gone; also names a worker or a command.",
    )
    reason = models.TextField(blank=True, default="")
    data = models.JSONField(default=dict, blank=True)
    created_at = models.DateTimeField(default=timezone.now)

    objects: ClassVar[BranchRowQuerySet["Event"]] = BranchRowQuerySet.as_manager()  # type: ignore[assignment]

    class Meta:
        ordering = ["position"]
        constraints = [models.UniqueConstraint(fields=["session", "position"], name="event_position_once")]
        indexes = [models.Index(fields=["branch", "position"], name="event_branch")]

    def __str__(self) -> str:
        return f"{self.kind} {self.position}"
