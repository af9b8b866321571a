"""A session: one agent's work for one customer, and the state of its runs.

The row is the only place that says who may write (``epoch``), until when (``lease_expires_at``) and when
the session is due (``next_run_at``). It is written by `sessions_app.runtime` for runs and by `sessions_app.actions`
for people, and by nothing else. `resting_fields` is the one rule of its fields while no worker runs it.
"""

import secrets
import time
import uuid
from datetime import datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.db import models
from django.db.models import Case, ExpressionWrapper, F, Q, When
from django.utils import timezone

from agentstate.domain.phases import TRANSITIONS
from sessions_app.models.agent import RegisteredAgent, registered_agents
from sessions_app.models.changes import WritesChanges
from sessions_app.models.enums import StaffPermission
from sessions_app.models.states import Phase, Status, StopRequest, WaitingFor

if TYPE_CHECKING:
    from sessions_app.models.branch import Branch


def uuid7() -> uuid.UUID:
    """A time-ordered UUID (RFC 9562, version 7), so that new sessions sit together in the index."""
    milliseconds = time.time_ns() // 1_000_000
    value = (
        (milliseconds << 80)
        | (0x7 << 76)
        | (secrets.randbits(12) << 64)
        | (0b10 << 62)
        | secrets.randbits(62)
    )
    return uuid.UUID(int=value)


def made_before(at: datetime) -> Q:
    """The condition that a session was made before that time, by its key: indexes of other columns have that, too."""
    return Q(pk__lt=uuid.UUID(int=int(at.timestamp() * 1000) << 80))


class SessionQuerySet(models.QuerySet["Session"]):
    def due(self, now: datetime) -> "SessionQuerySet":
        """Queued sessions whose time has come."""
        return self.filter(status=Status.QUEUED, next_run_at__lte=now)

    def lost(self, now: datetime) -> "SessionQuerySet":
        """Running sessions whose worker stopped renewing its lease."""
        return self.filter(status=Status.RUNNING, lease_expires_at__lt=now)

    def claimable(self, now: datetime) -> "SessionQuerySet":
        return self.filter(
            Q(status=Status.QUEUED, next_run_at__lte=now) | Q(status=Status.RUNNING, lease_expires_at__lt=now)
        )


def resting_fields(
    status: Status,
    *,
    now: datetime,
    why: str | None = None,
    waiting_for: str = "",
    delay: float = 0.0,
) -> dict[str, Any]:
    """The fields of a session that no worker runs, for each status: for an UPDATE, or to be set on the row.

    It has no worker, no lease, no stop request and no failure; only a queued session is due, and only a waiting one
    waits for something. The caller adds what it changes besides, such as the failure of one that has failed.
    `Session.rest` does the same to a row that is loaded.

    :param why: Why the session waits, is paused or was cancelled; None leaves the text that is there.
    :param waiting_for: A value of `WaitingFor`; ignored unless the session waits.
    :param delay: Seconds until a queued session is due.
    :raises ValueError: for a running session, or a waiting one that waits for nothing.
    """
    if status == Status.RUNNING:
        raise ValueError("A running session is not at rest.")
    if status == Status.WAITING and not waiting_for:
        raise ValueError("A waiting session waits for something.")
    fields: dict[str, Any] = {
        "status": status,
        "waiting_for": waiting_for if status == Status.WAITING else "",
        "worker": "",
        "lease_expires_at": None,
        "next_run_at": now + timedelta(seconds=delay) if status == Status.QUEUED else None,
        "stop_request": "",
        "failure": None,
    }
    return fields if why is None else {**fields, "why": why}


def _allowed_phase_changes() -> Q:
    """Every row's last phase change is one that the state machine allows; unknown after a rewind."""
    allowed = Q(previous_phase="")
    for source, targets in TRANSITIONS.items():
        allowed |= Q(previous_phase=source.value, phase__in=sorted(t.value for t in targets))
    return allowed


_BY_CAUSE = ["failure", "updated_at", "id"]
_FAILED = ExpressionWrapper(Q(status=Status.IDLE, phase=Phase.ERROR), models.BooleanField())
_ENDED_A_TURN = Q(status=Status.IDLE, phase__in=[Phase.DONE, Phase.ERROR])


class Session(WritesChanges):
    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    agent = models.CharField(max_length=100)
    title = models.CharField(max_length=200, blank=True)
    customer = models.CharField(max_length=200, blank=True, db_index=True)
    assignee = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        null=True,
        blank=True,
        on_delete=models.SET_NULL,
        related_name="assigned_sessions",
    )

    phase = models.CharField(max_length=12, choices=Phase, default=Phase.IDLE)
    previous_phase = models.CharField(max_length=12, choices=Phase, blank=True, default="")
    phase_since = models.DateTimeField(default=timezone.now)
    status = models.CharField(max_length=12, choices=Status, default=Status.IDLE)
    waiting_for = models.CharField(max_length=12, choices=WaitingFor, blank=True, default="")
    why = models.TextField(
        blank=True, default="", help_text="Why the session waits, is paused or was cancelled."
    )
    error = models.TextField(blank=True, default="")
    failure = models.UUIDField(
        null=True,
        blank=True,
        editable=False,
        help_text="Names the cause why it failed or was parked: the same for all sessions with that cause.",
    )
    final_answer = models.TextField(blank=True, default="")
    exit_reason = models.CharField(max_length=200, blank=True, default="")

    epoch = models.PositiveBigIntegerField(
        default=0, help_text="Raised by every claim; a write with an old one is refused."
    )
    worker = models.CharField(max_length=200, blank=True, default="")
    lease_expires_at = models.DateTimeField(null=True, blank=True)
    next_run_at = models.DateTimeField(null=True, blank=True)
    attempt = models.PositiveIntegerField(default=0, help_text="Claims since the last progress.")
    stop_request = models.CharField(max_length=8, choices=StopRequest, blank=True, default="")

    position = models.PositiveBigIntegerField(
        default=0, help_text="The last position given out; never goes back."
    )
    change = models.PositiveBigIntegerField(
        default=0, help_text="Raised by every commit; what live pages poll."
    )
    version = models.PositiveBigIntegerField(
        default=0, help_text="Raised when a drawn page's buttons may be wrong."
    )
    branch = models.ForeignKey("Branch", null=True, on_delete=models.RESTRICT, related_name="+")
    forked_from = models.ForeignKey(
        "Checkpoint", null=True, blank=True, on_delete=models.RESTRICT, related_name="forks"
    )
    line = models.UUIDField(
        null=True,
        blank=True,
        editable=False,
        help_text="The oldest of the sessions that forks connect, directly or through others; empty without a fork.",
    )

    inputs = models.JSONField(
        default=dict, blank=True, help_text="State values, prompt variables and generation kwargs."
    )
    breakpoints = models.JSONField(
        null=True,
        blank=True,
        help_text="Where people want it to stop, as `Breakpoint.to_dict`, and who set it.",
    )
    breakpoint_hit = models.JSONField(
        null=True,
        blank=True,
        help_text="Where a breakpoint stopped this turn last, and the ids of its calls; `passed` once it was resumed.",
    )
    definition = models.CharField(
        max_length=64, blank=True, default="", help_text="Fingerprint of the agent that runs it."
    )
    totals = models.JSONField(
        default=dict, blank=True, help_text="Edges, seconds and tokens of the visible history."
    )

    # For an index that does not depend on the phase: each commit of a run changes that (docs/performance.md).
    has_failed = models.GeneratedField(
        expression=_FAILED, output_field=models.BooleanField(), db_persist=True
    )
    # For the same reason: that of a session which does not run, nor is done or has failed, as nearly all are.
    phase_at_rest = models.GeneratedField(
        expression=Case(When(~Q(status=Status.RUNNING) & ~_ENDED_A_TURN, then=F("phase"))),
        output_field=models.CharField(max_length=12),
        db_persist=True,
    )
    created_at = models.DateTimeField(default=timezone.now, db_index=True)
    updated_at = models.DateTimeField(default=timezone.now)

    objects = SessionQuerySet.as_manager()

    class Meta:
        ordering = ["-created_at"]
        indexes = [
            models.Index(fields=["-updated_at", "-id"], name="session_recent"),
            models.Index(fields=["status", "next_run_at"], name="session_due"),
            models.Index(fields=["status", "lease_expires_at"], name="session_lost"),
            # With the branch, so that nothing else is read to find what stands on it.
            models.Index(fields=["status", "-updated_at", "-id", "branch"], name="session_status_recent"),
            models.Index(fields=["-updated_at", "-id"], condition=Q(has_failed=True), name="session_failed"),
            models.Index(fields=_BY_CAUSE, condition=Q(failure__isnull=False), name="session_failure"),
            models.Index(
                fields=["agent", *_BY_CAUSE],
                condition=Q(failure__isnull=False),
                name="session_agent_failure",
            ),
            models.Index(
                fields=_BY_CAUSE, condition=Q(waiting_for=WaitingFor.CHANGED), name="session_changed"
            ),
            models.Index(fields=["agent", "status"], name="session_agent_status"),
            models.Index(
                fields=["phase_at_rest", "status", "id", "branch", "failure"],
                condition=Q(phase_at_rest__isnull=False),
                name="session_phase_at_rest",
            ),
            models.Index(fields=["line"], condition=Q(line__isnull=False), name="session_line"),
        ]
        constraints = [
            models.CheckConstraint(condition=Q(phase__in=Phase.values), name="session_phase_known"),
            models.CheckConstraint(condition=_allowed_phase_changes(), name="session_phase_change_allowed"),
            models.CheckConstraint(condition=Q(status__in=Status.values), name="session_status_known"),
            models.CheckConstraint(
                condition=Q(status=Status.RUNNING, lease_expires_at__isnull=False)
                | (~Q(status=Status.RUNNING) & Q(lease_expires_at__isnull=True)),
                name="session_lease_while_running",
            ),
            models.CheckConstraint(
                condition=Q(status=Status.QUEUED, next_run_at__isnull=False)
                | (~Q(status=Status.QUEUED) & Q(next_run_at__isnull=True)),
                name="session_due_while_queued",
            ),
            models.CheckConstraint(
                condition=(Q(status=Status.WAITING) & ~Q(waiting_for=""))
                | (~Q(status=Status.WAITING) & Q(waiting_for="")),
                name="session_waits_for_something",
            ),
        ]
        permissions = StaffPermission.declared()

    def __str__(self) -> str:
        return self.title or f"{self.agent} {str(self.id)[:13]}"

    @property
    def current_branch(self) -> "Branch":
        """The branch that the session is on.

        :raises RuntimeError: for a session without a branch, which only one that is being created is.
        """
        if self.branch is None:
            raise RuntimeError(f"Session {self.pk} has no branch.")
        return self.branch

    def rest(
        self,
        status: Status,
        *,
        now: datetime,
        why: str | None = None,
        waiting_for: str = "",
        keep_attempts: bool = False,
    ) -> None:
        """Set the fields of `resting_fields`. A queued session counts its attempts from 0, unless they are kept."""
        for name, value in resting_fields(status, now=now, why=why, waiting_for=waiting_for).items():
            setattr(self, name, value)
        if status == Status.QUEUED and not keep_attempts:
            self.attempt = 0

    def outdate_pages(self, now: datetime) -> None:
        """Make pages that were drawn before out of date: an action sent from one of them is refused as `Moved`."""
        self.version += 1
        self.updated_at = now

    @property
    def is_failed(self) -> bool:
        """What the database stores as ``has_failed``, also for a row whose changes are not saved yet."""
        return self.status == Status.IDLE and self.phase == Phase.ERROR

    @property
    def at_breakpoint(self) -> dict[str, Any] | None:
        """The `breakpoint_hit` at which the session waits; None if it does not wait at a breakpoint."""
        hit: dict[str, Any] | None = self.breakpoint_hit
        return hit if hit and self.status == Status.PAUSED and not hit.get("passed") else None

    @cached_property
    def registered_agent(self) -> RegisteredAgent | None:
        """Its agent as the workers published it, None if they do not have it. One query, when it is first read."""
        return registered_agents.first(self.agent)

    @property
    def new_definition(self) -> str:
        """The definition of its agent that the workers have, if the session last ran with another one; else ""."""
        agent = self.registered_agent
        if agent is None or agent.problem or not self.definition or agent.definition == self.definition:
            return ""
        return agent.definition

    def heartbeat_age(self, now: datetime, lease_seconds: float) -> float | None:
        """Seconds since the worker last renewed its lease, or None while no worker runs the session."""
        if self.lease_expires_at is None:
            return None
        return max(0.0, lease_seconds - (self.lease_expires_at - now).total_seconds())
