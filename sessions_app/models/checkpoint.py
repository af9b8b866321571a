"""Checkpoints: the points from which a run can continue, each stored as what changed since the one before."""

from typing import ClassVar

from django.db import models
from django.db.models import Q
from django.utils import timezone

from agentstate.names import CheckpointKind
from sessions_app.models.rows import BranchRow, BranchRowQuerySet
from sessions_app.models.states import Phase
from sessions_app.models.totals import TotalsField


class Checkpoint(BranchRow):
    """The state at the start of a step (or at the end of a turn): everything up to and including ``position``.

    ``context`` is None where the model sees every message of the branch since the last checkpoint that has
    one; else the positions it sees, ``[[first, last], ...]``. ``keys`` maps each state key to the position
    of its last whole value; ``StateValue`` rows from there on make up the value here.
    """

    class Kind(models.TextChoices):
        START = CheckpointKind.START.value, "start of a turn"
        STEP = CheckpointKind.STEP.value, "start of a step"
        PREPARED = CheckpointKind.PREPARED.value, "inside a step"
        END = CheckpointKind.END.value, "end of a turn"

    kind = models.CharField(max_length=10, choices=Kind)
    step = models.PositiveIntegerField(help_text="Steps finished on this branch before it.")
    phase = models.CharField(max_length=12, choices=Phase)
    context = models.JSONField(null=True, blank=True)
    context_at = models.PositiveBigIntegerField(
        default=0, help_text="Position of the checkpoint whose context holds, 0 for none."
    )
    keys = models.JSONField(default=dict, blank=True)
    counters = models.JSONField(
        default=dict, blank=True, help_text="step_count, token_usage, context_tokens, tool_call_counts."
    )
    tools = models.JSONField(null=True, blank=True, help_text="The tools at hand, where they changed.")
    outcome = models.JSONField(
        null=True, blank=True, help_text="At the end of a turn: final answer and exit reason."
    )
    totals = TotalsField(default=dict, blank=True)
    definition = models.CharField(max_length=64, blank=True, default="")
    created_at = models.DateTimeField(default=timezone.now)

    objects: ClassVar[BranchRowQuerySet["Checkpoint"]] = BranchRowQuerySet.as_manager()  # type: ignore[assignment]

    class Meta(BranchRow.Meta):
        constraints = [
            models.UniqueConstraint(fields=["branch", "position"], name="checkpoint_position_once")
        ]
        indexes = [
            models.Index(
                fields=["branch", "position"],
                condition=Q(kind__in=(CheckpointKind.START.value, CheckpointKind.END.value)),
                name="checkpoint_turn",
            ),
            models.Index(fields=["branch", "position"], condition=~Q(tools=None), name="checkpoint_tools"),
        ]

    def __str__(self) -> str:
        return f"#{self.pk}"

    @property
    def complete(self) -> bool:
        """Whether a session may be rewound to it or forked from it."""
        return self.kind != self.Kind.PREPARED


class StateValue(BranchRow):
    """A change of one state key: a new whole value, or items added to a list (``extends``).

    ``history.value_rows`` says what ``value`` is where a tool call holds the value already.
    """

    key = models.CharField(max_length=200)
    extends = models.BooleanField(default=False)
    value = models.JSONField(null=True)
    call_at = models.BigIntegerField(
        null=True, help_text="The position of the tool call whose result holds the value."
    )

    objects: ClassVar[BranchRowQuerySet["StateValue"]] = BranchRowQuerySet.as_manager()  # type: ignore[assignment]

    class Meta(BranchRow.Meta):
        constraints = [models.UniqueConstraint(fields=["branch", "key", "position"], name="statevalue_once")]

    def __str__(self) -> str:
        return f"{self.key} at {self.position}"
