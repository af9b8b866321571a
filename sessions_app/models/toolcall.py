"""The ledger of tool calls: planned, started, ended. A call that has ended is never changed again."""

from functools import cached_property
from typing import ClassVar

from django.db import models
from django.db.models import Q
from django.utils import timezone

from agentstate.durable.breakpoints import same_value
from agentstate.names import ENDED_CALL_STATES, FAILED_CALL_STATES, OPEN_CALL_STATES, CallState
from sessions_app.models.rows import BranchRow, BranchRowQuerySet


class CallStatus(models.TextChoices):
    PLANNED = CallState.PLANNED.value, "asked for"
    STARTED = CallState.STARTED.value, "running"
    DOUBT = CallState.DOUBT.value, "in doubt"
    DONE = CallState.DONE.value, "done"
    FAILED = CallState.FAILED.value, "failed"
    REJECTED = CallState.REJECTED.value, "rejected"
    SKIPPED = CallState.SKIPPED.value, "skipped"


class ToolCall(BranchRow):
    """One tool call of one model reply.

    ``arguments`` are the model's; ``sent`` are those that run, where a person or a hook changed them.
    ``result`` is the encoded return value (``agentstate.durable.state.encoding``), ``state`` the state keys that the
    tool itself wrote.
    """

    call_id = models.CharField(max_length=200)
    tool = models.CharField(max_length=200)
    arguments = models.JSONField(default=dict)
    sent = models.JSONField(null=True, blank=True)
    status = models.CharField(max_length=10, choices=CallStatus, default=CallStatus.PLANNED)
    result = models.JSONField(null=True, blank=True)
    error = models.TextField(blank=True, default="")
    state = models.JSONField(null=True, blank=True)
    lossy = models.BooleanField(
        default=False, help_text="The result could only be stored as text, or was changed to fit."
    )
    cached = models.BooleanField(
        default=False, help_text="Answered from the tool cache; the tool did not run."
    )
    attempt = models.PositiveIntegerField(default=0, help_text="How often it was started.")
    worker = models.CharField(
        max_length=200, blank=True, default="", db_default="", help_text="The worker that started it last."
    )
    idempotency_key = models.CharField(max_length=100)
    copy_of = models.ForeignKey(
        "self",
        null=True,
        blank=True,
        on_delete=models.CASCADE,
        related_name="copies",
        db_index=False,
        help_text="The original, where a repair copied the call: both are the same call.",
    )
    decided_by = models.CharField(
        max_length=150, blank=True, default="", help_text="The person who answered for it."
    )
    asked_at = models.DateTimeField(default=timezone.now)
    started_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)

    objects: ClassVar[BranchRowQuerySet["ToolCall"]] = BranchRowQuerySet.as_manager()  # type: ignore[assignment]

    class Meta(BranchRow.Meta):
        indexes = [
            models.Index(
                fields=["branch", "position"], condition=Q(status__in=OPEN_CALL_STATES), name="toolcall_open"
            ),
            models.Index(
                fields=["branch", "position"],
                condition=Q(status__in=FAILED_CALL_STATES),
                name="toolcall_failed",
            ),
            models.Index(
                fields=["started_at", "id", "branch"],
                condition=Q(status=CallState.DOUBT.value),
                name="toolcall_doubt",
            ),
            models.Index(fields=["copy_of"], condition=Q(copy_of__isnull=False), name="toolcall_copies"),
        ]
        constraints = [
            models.UniqueConstraint(fields=["branch", "position"], name="toolcall_position_once"),
            models.CheckConstraint(condition=Q(status__in=CallStatus.values), name="toolcall_status_known"),
            models.CheckConstraint(
                condition=Q(status__in=ENDED_CALL_STATES, ended_at__isnull=False)
                | (~Q(status__in=ENDED_CALL_STATES) & Q(ended_at__isnull=True)),
                name="toolcall_ended_has_time",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.tool} {self.position}"

    @property
    def column_of_run(self) -> str:
        """The column of the arguments that run, or have run: ``arguments``, ``sent``, or ``edited`` of the approval."""
        if self.sent is not None:
            return "sent"
        approval = self._state.fields_cache.get("approval")
        return "arguments" if approval is None or approval.edited is None else "edited"

    @property
    def ran_with(self) -> dict[str, object]:
        """The arguments that run, or have run; before the start those that a person approved, if that is loaded."""
        column = self.column_of_run
        arguments: dict[str, object] = getattr(self.approval if column == "edited" else self, column)
        return arguments

    @cached_property
    def changed_arguments(self) -> tuple[str, ...]:
        """The names of the arguments that run with another value than the agent asked for, or that it did not ask for.

        A masked copy has the names of the row itself.
        """
        requested, ran = self.arguments, self.ran_with
        if ran is requested:
            return ()
        return tuple(
            name
            for name in {**requested, **ran}
            if name not in requested or name not in ran or not same_value(requested[name], ran[name])
        )

    @property
    def facts_of_a_masked_copy(self) -> dict[str, object]:
        """What a masked copy is told of the row, since it could not find it out from hidden values. No query."""
        approval = self._state.fields_cache.get("approval")
        loaded = {"arguments", "sent"} <= vars(self).keys() and (
            approval is None or "edited" in vars(approval)
        )
        return {"changed_arguments": self.changed_arguments} if loaded else {}

    def reference(self) -> dict[str, object]:
        """How the data of an event names the call."""
        return {"call": self.pk, "call_id": self.call_id, "tool": self.tool, "position": self.position}

    @property
    def seconds(self) -> float | None:
        """How long it ran; None where that is unknown, as of a call of which a person said what happened."""
        return None if self.decided_by else self._seconds

    @property
    def seconds_until_decided(self) -> float | None:
        """From its start until a person said what happened; None for any other call."""
        return self._seconds if self.decided_by else None

    @property
    def _seconds(self) -> float | None:
        if self.started_at is None or self.ended_at is None:
            return None
        return (self.ended_at - self.started_at).total_seconds()
