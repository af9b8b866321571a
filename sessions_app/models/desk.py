"""What people leave behind besides the sessions: allowances, requests carried out, saved views and bulk actions."""

from uuid import UUID

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils import timezone

from sessions_app.models.compiled import compiled
from sessions_app.models.session import Session


class Allowance(models.Model):
    """A standing approval: calls of this tool run in this session without asking again."""

    session = models.ForeignKey(Session, on_delete=models.CASCADE, related_name="allowances")
    tool = models.CharField(max_length=200)
    granted_by = models.CharField(max_length=150)
    granted_at = models.DateTimeField(default=timezone.now)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["session", "tool"], name="allowance_once")]

    def __str__(self) -> str:
        return self.tool


@compiled
def allowances_of(session_id: UUID) -> models.QuerySet[Allowance]:
    """The standing approvals of the session, by the names of their tools."""
    return Allowance.objects.filter(session=session_id).order_by("tool")


def pre_approved_tools(session_id: UUID) -> frozenset[str]:
    """The names of the tools of the standing approvals of the session."""
    return frozenset([allowance.tool for allowance in allowances_of(session_id)])


class HandledRequest(models.Model):
    """A request that was carried out, by the id that its sender gave it: when it comes again, nothing is done."""

    id = models.UUIDField(primary_key=True)
    session = models.ForeignKey(Session, on_delete=models.CASCADE, related_name="+")
    digest = models.CharField(
        max_length=64, help_text="Of all that was asked: it tells a repetition from misuse."
    )

    def __str__(self) -> str:
        return str(self.pk)


class SavedView(models.Model):
    """A named set of filters: its owner's, or everyone's."""

    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="saved_views")
    name = models.CharField(max_length=60)
    query = models.TextField(help_text="The query string of the list's address.")
    shared = models.BooleanField(default=False)
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["name"]
        constraints = [models.UniqueConstraint(fields=["owner", "name"], name="saved_view_once")]

    def __str__(self) -> str:
        return self.name


class BulkAction(models.Model):
    """One action on many sessions. Its items are fixed when it starts, and Celery works through them."""

    kind = models.CharField(max_length=30, help_text="The key of the action in `sessions_app.action_list`.")
    query = models.TextField(blank=True, help_text="The query string that chose the sessions.")
    reason = models.TextField()
    assignee = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    actor = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+"
    )
    actor_name = models.CharField(max_length=150)
    created_at = models.DateTimeField(default=timezone.now)
    stopped_at = models.DateTimeField(null=True, blank=True)
    stopped_by = models.CharField(max_length=150, blank=True, default="")

    class Meta:
        ordering = ["-created_at"]

    def __str__(self) -> str:
        return f"{self.kind} {self.pk}"


class BulkItem(models.Model):
    class Outcome(models.TextChoices):
        PENDING = "", "to do"
        DONE = "done", "done"
        REFUSED = "refused", "refused"
        STOPPED = "stopped", "stopped before its turn"

    bulk_action = models.ForeignKey(BulkAction, on_delete=models.CASCADE, related_name="items")
    session = models.ForeignKey(Session, on_delete=models.CASCADE, related_name="+")
    outcome = models.CharField(max_length=10, choices=Outcome, blank=True, default=Outcome.PENDING)
    why = models.TextField(blank=True, default="")
    done_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["id"]
        constraints = [
            models.UniqueConstraint(fields=["bulk_action", "session"], name="bulk_item_once"),
            models.CheckConstraint(
                condition=Q(outcome="", done_at__isnull=True) | (~Q(outcome="") & Q(done_at__isnull=False)),
                name="bulk_item_done_has_time",
            ),
        ]
        indexes = [models.Index(fields=["bulk_action", "outcome"], name="bulk_item_todo")]

    def __str__(self) -> str:
        return f"{self.session_id} {self.outcome}"
