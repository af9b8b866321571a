"""A question to a person: may this call run, with exactly these arguments?"""

from typing import Any

from django.db import models
from django.db.models import Q
from django.utils import timezone

from agentstate import names
from sessions_app.models.loading import LoadedModel
from sessions_app.models.session import Session
from sessions_app.models.toolcall import ToolCall


class Approval(LoadedModel):
    """Asked once per call. ``fingerprint`` binds the decision to the arguments that were shown.

    ``from_state`` is beside the arguments, since the model did not ask for it: nobody edits it here, and the call does
    not run once it has changed, see `agentstate.durable.state_arguments`. Its keys are those of the State, because a
    value is hidden by the name of either.

    A call whose request was approved is asked about again, by the same row, where it would follow an effect that the
    request did not show. ``edited`` are then the arguments of the first decision, which run unless they are changed.

    A new attempt of a failed call has that call's approval if a person changed its arguments, without a fingerprint:
    nobody was asked about the attempt. They run; where somebody has to be asked, the same row asks about them.
    """

    class Decision(models.TextChoices):
        APPROVED = names.Decision.APPROVED.value, "approved"
        REJECTED = names.Decision.REJECTED.value, "rejected"
        EXPIRED = names.Decision.EXPIRED.value, "expired"
        REUSED = names.Decision.REUSED.value, "answered with the result on record"

    session = models.ForeignKey(Session, on_delete=models.CASCADE, related_name="approvals")
    call = models.OneToOneField(ToolCall, on_delete=models.CASCADE, related_name="approval")
    arguments = models.JSONField(default=dict)
    repeats = models.ForeignKey(
        ToolCall,
        null=True,
        blank=True,
        on_delete=models.SET_NULL,
        related_name="+",
        help_text="The newest of `earlier` with the same arguments: it has had its effect already.",
    )
    earlier = models.JSONField(
        null=True,
        blank=True,
        help_text="The keys of the earlier effects of the tool that the request shows, newest first: "
        "calls that the history does not show. Empty for none.",
    )
    fingerprint = models.CharField(max_length=64)
    from_state = models.JSONField(
        null=True,
        blank=True,
        help_text="What the tool would be given from the State besides, by the State's key and the argument. "
        "Of a large value the beginning. Empty for a tool that takes nothing from the State.",
    )
    from_state_digests = models.JSONField(
        null=True,
        blank=True,
        help_text="By argument the State's key, and the digest of the whole value; "
        "an empty digest where the State had none.",
    )
    asked_at = models.DateTimeField(default=timezone.now)
    expires_at = models.DateTimeField(null=True, blank=True)
    decision = models.CharField(max_length=10, choices=Decision, blank=True, default="")
    edited = models.JSONField(
        null=True, blank=True, help_text="The arguments to run with, where the person changed them."
    )
    message = models.TextField(blank=True, default="", help_text="What the model is told on rejection.")
    decided_at = models.DateTimeField(null=True, blank=True)
    decided_by = models.CharField(max_length=150, blank=True, default="")

    class Meta:
        ordering = ["asked_at"]
        indexes = [
            models.Index(
                fields=["asked_at", "id", "session", "call", "expires_at"],
                condition=Q(decision=""),
                name="approval_open",
            ),
            models.Index(
                fields=["expires_at"],
                condition=Q(decision="", expires_at__isnull=False),
                name="approval_expiring",
            ),
        ]
        constraints = [
            models.CheckConstraint(
                condition=Q(decision="", decided_at__isnull=True)
                | (~Q(decision="") & Q(decided_at__isnull=False)),
                name="approval_decided_has_time",
            )
        ]

    def __str__(self) -> str:
        return f"approval of {self.call_id}"

    @property
    def is_carried(self) -> bool:
        """Whether it is the approval of the failed call of which its own call is a new attempt."""
        return self.fingerprint == ""

    @property
    def run_arguments(self) -> Any:
        """The arguments that run if it is approved as it is."""
        return self.arguments if self.edited is None else self.edited
