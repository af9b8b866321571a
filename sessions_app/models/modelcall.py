"""Model calls: each reply that arrived, and each attempt that failed."""

from typing import ClassVar

from django.db import models
from django.db.models import Q

from agentstate.names import AGENT_GENERATOR
from sessions_app.models.rows import BranchRow, BranchRowQuerySet


class ModelCall(BranchRow):
    """One call of a chat generator.

    The agent's own reply is the ``replies`` messages at the positions right after this row's. The reply to a side call,
    which a hook made with a generator of its own (a summariser, say), is in ``side_replies``: it is not part of the
    conversation.
    """

    name = models.CharField(
        max_length=100, default=AGENT_GENERATOR, help_text="Which generator: the agent's own, or another."
    )
    seq = models.PositiveIntegerField(
        default=0, help_text="Index of this call of the generator within its step, from 0."
    )
    replies = models.PositiveIntegerField(default=0)
    side_replies = models.JSONField(null=True, blank=True)
    model = models.CharField(max_length=200, blank=True, default="")
    prompt_tokens = models.PositiveBigIntegerField(default=0)
    completion_tokens = models.PositiveBigIntegerField(default=0)
    source = models.UUIDField(
        null=True,
        blank=True,
        help_text="From the semantic cache: the session whose reply it is, if it is there.",
    )
    similarity = models.FloatField(
        null=True, blank=True, help_text="From the semantic cache: how similar the two questions are."
    )
    error = models.TextField(blank=True, default="")
    started_at = models.DateTimeField()
    ended_at = models.DateTimeField()

    objects: ClassVar[BranchRowQuerySet["ModelCall"]] = BranchRowQuerySet.as_manager()  # type: ignore[assignment]

    class Meta(BranchRow.Meta):
        indexes = [
            models.Index(fields=["branch", "position"], condition=~Q(error=""), name="modelcall_failed")
        ]
        constraints = [
            models.UniqueConstraint(fields=["branch", "position"], name="modelcall_position_once"),
            models.CheckConstraint(
                condition=Q(ended_at__gte=models.F("started_at")), name="modelcall_ends_after_start"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.name} {self.position}"

    @property
    def cached(self) -> bool:
        """Whether the reply is from the semantic cache: the model was not called."""
        return self.similarity is not None

    @property
    def shown_as(self) -> str:
        """What it is called on pages."""
        if self.cached:
            return "cached reply"
        return "failed model call" if self.error else "model call"

    @property
    def seconds(self) -> float:
        return (self.ended_at - self.started_at).total_seconds()
