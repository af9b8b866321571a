"""Rewinding a session, undoing that, and forking it.

No row of the history is copied, changed or deleted: a branch is made, and a pointer moves. The cost does not depend on
how long the history is. A worker that runs the session loses its lease: the epoch is raised.
"""

from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import QuerySet
from django.utils import timezone
from django.utils.dateparse import parse_datetime

from sessions_app.access.availability import agent_cannot_run, shows
from sessions_app.access.errors import Invalid, NotFound, Refused
from sessions_app.access.roles import Actor
from sessions_app.access.shown import in_one_line
from sessions_app.action_list import FORK, REWIND, UNDO
from sessions_app.actions.base import (
    asks_reason,
    begin_turn_if_over,
    check,
    commit,
    in_one_transaction,
    lock,
    optional_text,
    queue,
    require,
    required_text,
    set_status,
)
from sessions_app.history import restore
from sessions_app.history.failures import failure_of
from sessions_app.models import (
    Branch,
    Checkpoint,
    Event,
    EventKind,
    InboxMessage,
    Message,
    Phase,
    Session,
    SessionTag,
    Status,
    next_number,
)
from sessions_app.models.compiled import compiled

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
    require(actor, REWIND.permission)
    reason = required_text("The reason", reason)
    session = lock(session_id, expected_version)
    checkpoint, parent = _find(session, checkpoint_id)
    check(session, REWIND, checkpoint=checkpoint)
    now = timezone.now()
    data = go_back(session, checkpoint, parent, actor, reason, now)
    set_status_at(session, checkpoint, run=run, why=reason, now=now)
    return commit(session, REWIND.event, actor, reason, data)


def go_back(
    session: Session, checkpoint: Checkpoint, parent: Branch, actor: Actor, reason: str, now: datetime
) -> dict[str, Any]:
    """Let the locked session continue from the checkpoint, on a new branch that leaves `parent` there.

    :returns: What the event tells of it.
    """
    left_branch = leave(session)
    session.branch = Branch.objects.create(
        session=session,
        number=next_number(session),
        parent=parent,
        undo_to=left_branch,
        left_at=checkpoint.position,
        lineage=parent.lineage_at(checkpoint.position),
        created_at=now,
        created_by=actor.user,
        reason=reason,
    )
    move_to(session, checkpoint, now)
    return {
        "checkpoint": checkpoint.pk,
        "position": checkpoint.position,
        "from_branch": left_branch.number,
        "to_branch": session.branch.number,
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


@in_one_transaction
def fork(
    *,
    actor: Actor,
    session_id: UUID | str,
    checkpoint_id: int,
    reason: str,
    message: str = "",
    replace: int | None = None,
    title: str = "",
    run: bool = False,
    expected_version: int | None = None,
) -> Session:
    """A new session that shares this one's history up to a checkpoint; the source is not affected.

    It is paused there, or queued with `run` or a `message`; at the end of a turn and without a message it is idle.

    :param message: The next message; or, with `replace`, the one that takes the place of an earlier message.
    :param replace: The position of the user's message that `message` replaces.
    :returns: The new session.
    :raises NotFound: for a checkpoint that no branch of this session shows, and if the model's context there has no
        user's message at `replace`.
    """
    require(actor, FORK.permission)
    reason = required_text("The reason", reason)
    message = optional_text("The message", message)
    title = optional_text("The title", title, 200)
    if replace is not None and not message:
        raise Invalid("Write the new message.")
    source = lock(session_id, expected_version)
    checkpoint, parent = _find(source, checkpoint_id)
    check(source, FORK, checkpoint=checkpoint)
    now = timezone.now()
    source.line = source.line or source.pk
    fork = Session(
        agent=source.agent,
        title=title or f"{in_one_line(source.title, 190)} (fork)".strip(),
        customer=source.customer,
        inputs=source.inputs,
        position=checkpoint.position,
        forked_from=checkpoint,
        line=source.line,
        created_at=now,
    )
    # `commit` inserts its row: what refers to that is checked at the end of the transaction.
    fork.branch = Branch.objects.create(
        session=fork,
        number=1,
        parent=parent,
        left_at=checkpoint.position,
        lineage=parent.lineage_at(checkpoint.position),
        created_at=now,
        created_by=actor.user,
        reason=reason,
    )
    SessionTag.objects.bulk_create(SessionTag(session=fork, name=name) for name in _tags(source.pk))
    if replace is not None:
        _replace_message(fork, checkpoint, replace, message, actor=actor, reason=reason, now=now)
    elif message:
        InboxMessage.objects.create(session=fork, text=message, author=actor.user)
    move_to(fork, checkpoint, now)
    set_status_at(fork, checkpoint, run=run or bool(message), why=reason, now=now)
    point = {"checkpoint": checkpoint.pk, "position": checkpoint.position}
    commit(source, FORK.event, actor, reason, {**point, "to": str(fork.pk)})
    return commit(fork, FORK.event, actor, reason, {**point, "from": str(source.pk)})


def _replace_message(
    fork: Session,
    checkpoint: Checkpoint,
    position: int,
    text: str,
    *,
    actor: Actor,
    reason: str,
    now: datetime,
) -> None:
    """Begin the fork with a checkpoint of its own, in whose context another text replaces a user's message."""
    if checkpoint.kind == Checkpoint.Kind.END:
        raise Invalid("A turn that is over reads no message again. Fork from the start of a step of it.")
    branch = fork.current_branch
    context = restore.context_of(branch, checkpoint)
    if not any(message.position == position and message.role == Message.Role.USER for message in context):
        raise NotFound(f"The model sees no user's message {position} at this checkpoint.")
    place = fork.position + 1
    Message.objects.create(
        branch=branch,
        position=place,
        role=Message.Role.USER,
        text=text,
        body={"content": [{"text": None}]},
        author=actor.name,
        created_at=now,
    )
    Checkpoint.objects.create(
        branch=branch,
        position=place + 1,
        kind=checkpoint.kind,
        step=checkpoint.step,
        phase=checkpoint.phase,
        context=restore.ranges(
            place if message.position == position else message.position for message in context
        ),
        context_at=place + 1,
        keys=checkpoint.keys,
        counters=checkpoint.counters,
        tools=list(restore.tools_of(branch, checkpoint)),
        totals=checkpoint.totals,
        definition=checkpoint.definition,
        created_at=now,
    )
    fork.position = place + 1
    commit(
        fork,
        EventKind.REPAIRED,
        actor,
        reason,
        {"what": "message", "position": position, "by": place, "role": "user"},
    )


def _find(session: Session, checkpoint_id: int) -> tuple[Checkpoint, Branch]:
    """The checkpoint, and the branch of this session from which a new one may leave there.

    That is the present branch if it shows the checkpoint, else the checkpoint's own. What came from a
    fork's source belongs to no branch of this session, but the first one shows all of it.
    """
    current = session.current_branch
    checkpoint = _checkpoints.first(checkpoint_id)
    if checkpoint is not None:
        if shows(current, checkpoint):
            return checkpoint, current
        if checkpoint.branch.session_id == session.pk:
            return checkpoint, checkpoint.branch
        root = Branch.objects.get(session=session, number=1)
        if shows(root, checkpoint):
            return checkpoint, root
    raise NotFound(f"This session has no checkpoint {checkpoint_id}.")


@compiled
def _checkpoints(checkpoint_id: int) -> QuerySet[Checkpoint]:
    return Checkpoint.objects.select_related("branch").filter(pk=checkpoint_id)


@compiled
def _tags(session_id: UUID) -> QuerySet[SessionTag, str]:
    return SessionTag.objects.filter(session=session_id).values_list("name", flat=True)


def leave(session: Session) -> Branch:
    """Store on the present branch what the session was doing there, and end the lease of a worker that runs it."""
    branch = session.current_branch
    branch.left_state = {name: getattr(session, name) for name in LEFT_FIELDS} | {
        "phase_since": session.phase_since.isoformat()
    }
    branch.save(update_fields=["left_state"])
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
            raise Refused(f"{problem} Leave out running on: the session is then paused there.")
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
