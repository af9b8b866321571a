"""Rewinding a session, and undoing a rewind or repair.

No row of the history is copied, changed or deleted: a branch is made, and a pointer moves. The cost does not depend on
how long the history is. A worker that runs the session loses its lease: the epoch is raised.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import Exists, QuerySet, Subquery
from django.utils import timezone
from django.utils.dateparse import parse_datetime

from sessions_app.access.availability import agent_cannot_run, shows
from sessions_app.access.errors import NotFound, Refused
from sessions_app.access.roles import Actor
from sessions_app.action_list import REWIND, UNDO
from sessions_app.actions.base import (
    asks_reason,
    begin_turn_if_over,
    check,
    commit,
    in_one_transaction,
    lock,
    queue,
    require,
    required_reason,
    set_status,
)
from sessions_app.history import restore
from sessions_app.history.failures import failure_of
from sessions_app.models import (
    Branch,
    Checkpoint,
    Event,
    EventKind,
    Phase,
    Session,
    SessionTag,
    Status,
    newest_number,
    next_number,
)
from sessions_app.models.compiled import compiled
from sessions_app.models.later import update_later

# What a session is doing on a branch: stored when it leaves the branch, restored when it returns.
LEFT_FIELDS = (
    "phase",
    "previous_phase",
    "status",
    "waiting_for",
    "why",
    "error",
    "final_answer",
    "exit_reason",
    "attempt",
    "definition",
    "totals",
    "breakpoint_hit",
)


@in_one_transaction
def rewind(
    *,
    actor: Actor,
    session_id: UUID | str,
    checkpoint_id: int,
    reason: str,
    run: bool = False,
    expected_version: int | None = None,
) -> Session:
    """Go back to a checkpoint of any of the session's branches. What came after it stays readable, and `undo` returns.

    The session is then paused there, or queued with `run`; at the end of a turn it is idle until the next message.

    :raises NotFound: for a checkpoint that no branch of this session shows.
    """
    require(actor, REWIND)
    reason = required_reason(reason)
    session = lock(session_id, expected_version)
    found = find_checkpoint(session, checkpoint_id)
    checkpoint = found.checkpoint
    check(session, REWIND, checkpoint=checkpoint)
    now = timezone.now()
    data = go_back(session, checkpoint, found.parent, actor, reason, now, number=found.next_number)
    set_status_at(session, checkpoint, run=run, why=reason, now=now)
    return commit(session, REWIND.event, actor, reason, data)


def go_back(
    session: Session,
    checkpoint: Checkpoint,
    parent: Branch,
    actor: Actor,
    reason: str,
    now: datetime,
    *,
    number: int | None = None,
) -> dict[str, Any]:
    """Let the locked session continue from the checkpoint, on a new branch that leaves `parent` there.

    :param number: That of the new branch, where it is known: see `next_number`.
    :returns: What the event tells of it.
    """
    left_branch = session.current_branch
    branch = Branch.objects.create(
        session=session,
        number=number or next_number(session),
        parent=parent,
        undo_to=left_branch,
        left_at=checkpoint.position,
        lineage=parent.lineage_at(checkpoint.position),
        created_at=now,
        created_by=actor.user,
        reason=reason,
    )
    leave(session)  # behind the INSERT, which would have its write executed by itself
    session.branch = branch
    move_to(session, checkpoint, now)
    return {
        "checkpoint": checkpoint.pk,
        "position": checkpoint.position,
        "from_branch": left_branch.number,
        "to_branch": branch.number,
    }


@asks_reason(UNDO)
def undo(session: Session, actor: Actor, reason: str) -> Session:
    """Return to the branch that the last rewind or repair discarded, as it was; what was running there is paused."""
    left_branch = leave(session)
    target = left_branch.undo_to
    assert target is not None, "the rule of the action requires a rewind to undo"
    session.branch = target
    _restore_left_state(session, target.left_state or {}, why=reason)
    _drop_turn_without_message(session, target)
    undid = EventKind.REPAIRED if made_by_repair(left_branch) else EventKind.REWOUND
    data = {"from_branch": left_branch.number, "to_branch": target.number, "undid": undid.value}
    return commit(session, UNDO.event, actor, reason, data)


def made_by_repair(branch: Branch) -> bool:
    """Whether the session came to the branch by a repair, not by a rewind. One query."""
    return Event.objects.filter(branch=branch, kind=EventKind.REPAIRED).exists()


@dataclass(frozen=True, slots=True)
class Found:
    """A checkpoint, and the branch of the session from which a new one may leave there.

    next_number: that of the new branch, if it is one of this session. is_tagged: whether the session has tags.
    """

    checkpoint: Checkpoint
    parent: Branch
    next_number: int
    is_tagged: bool


def find_checkpoint(session: Session, checkpoint_id: int) -> Found:
    """The branch is the present one if that shows the checkpoint, else the checkpoint's own.

    What came from a fork's source belongs to no branch of this session, but the first one shows all of it. One query,
    or two.
    """
    checkpoint: Any = _checkpoints.first(checkpoint_id, session.pk)
    parent = _parent_for(session, checkpoint) if checkpoint is not None else None
    if parent is None:
        raise NotFound(f"This session has no checkpoint {checkpoint_id}.")
    return Found(checkpoint, parent, (checkpoint.newest_number or 0) + 1, checkpoint.is_tagged)


def _parent_for(session: Session, checkpoint: Checkpoint) -> Branch | None:
    if shows(session.current_branch, checkpoint):
        return session.current_branch
    if checkpoint.branch.session_id == session.pk:
        return checkpoint.branch
    root = Branch.objects.get(session=session, number=1)
    return root if shows(root, checkpoint) else None


@compiled
def _checkpoints(checkpoint_id: int, session_id: UUID) -> QuerySet[Checkpoint]:
    """With what a new branch or a fork of the session takes besides, so that it is no query of its own."""
    tagged = Exists(SessionTag.objects.filter(session=session_id))
    found = Checkpoint.objects.select_related("branch").filter(pk=checkpoint_id)
    return found.annotate(newest_number=Subquery(newest_number(session_id)), is_tagged=tagged)


def leave(session: Session) -> Branch:
    """Store on the current branch what the session was doing there, and end the lease of a worker that runs it."""
    branch = session.current_branch
    branch.left_state = {name: getattr(session, name) for name in LEFT_FIELDS} | {
        "phase_since": session.phase_since.isoformat()
    }
    update_later(branch, ("left_state",))
    session.epoch += 1
    return branch


def move_to(session: Session, checkpoint: Checkpoint, now: datetime) -> None:
    """Set the session's fields as they were at the checkpoint."""
    outcome = checkpoint.outcome or {}
    session.phase, session.previous_phase, session.phase_since = checkpoint.phase, "", now
    session.totals, session.definition = checkpoint.totals, checkpoint.definition
    session.error, session.breakpoint_hit = "", None
    session.final_answer = outcome.get("final_answer", "")
    session.exit_reason = outcome.get("exit_reason", "")
    session.attempt = 0


def set_status_at(session: Session, checkpoint: Checkpoint, *, run: bool, why: str, now: datetime) -> None:
    """Pause at the checkpoint, or continue from it; the end of a turn needs an unread message to continue."""
    over = checkpoint.kind == Checkpoint.Kind.END
    if over and not session.inbox.exists():
        set_status(session, Status.IDLE)
    elif run:
        if problem := agent_cannot_run(session):
            raise Refused(
                f"{problem} Rewind or fork without resuming immediately, and fork without a message; "
                "the session is then paused there."
            )
        begin_turn_if_over(session, now)
        queue(session, now)
    else:
        set_status(session, Status.PAUSED, why=why)


def _restore_left_state(session: Session, state: dict[str, Any], *, why: str) -> None:
    """Restore what the session was doing when it left this branch; what was running is paused instead."""
    for name in LEFT_FIELDS:
        if name in state:
            setattr(session, name, state[name])
    session.phase_since = parse_datetime(state.get("phase_since", "")) or timezone.now()
    waiting_for, attempt, status = session.waiting_for, session.attempt, session.status
    unread = status == Status.IDLE and session.phase == Phase.DONE and session.inbox.exists()
    if status in (Status.QUEUED, Status.RUNNING) or unread:
        set_status(session, Status.PAUSED, why=why)
    else:
        set_status(session, Status(status), why=session.why, waiting_for=waiting_for)
    session.waiting_for, session.attempt = waiting_for, attempt
    session.failure = failure_of(session)


def _drop_turn_without_message(session: Session, branch: Branch) -> None:
    """End a turn that had not begun here if its message has been read on the branch that was just left."""
    if session.status != Status.PAUSED or session.phase != Phase.PLANNING or session.inbox.exists():
        return
    tip = restore.last_visible(Checkpoint, branch)
    if tip is not None and tip.kind == Checkpoint.Kind.END:
        move_to(session, tip, timezone.now())
        set_status(session, Status.IDLE)
