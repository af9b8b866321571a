"""Forking a session: another one that shares its history up to a checkpoint.

No row of the history is copied, changed or deleted, so the cost does not depend on how long it is.
"""

from datetime import datetime
from uuid import UUID

from django.db.models import QuerySet
from django.utils import timezone

from sessions_app.access.errors import Invalid, NotFound
from sessions_app.access.roles import Actor
from sessions_app.access.shown import in_one_line
from sessions_app.action_list import FORK
from sessions_app.actions.base import (
    check,
    commit,
    in_one_transaction,
    lock,
    optional_text,
    require,
    required_reason,
)
from sessions_app.actions.history import find_checkpoint, move_to, set_status_at
from sessions_app.actions.replaced_messages import replacement
from sessions_app.history import restore
from sessions_app.models import (
    Branch,
    Checkpoint,
    EventKind,
    InboxMessage,
    Message,
    Session,
    SessionTag,
)
from sessions_app.models.compiled import compiled


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
    :param replace: The position of the user's message that `message` replaces. The new text keeps the blanks around it;
        the pictures and files of the message stay.
    :returns: The new session.
    :raises NotFound: for a checkpoint that no branch of this session shows, and if the model's context there has no
        user's message at `replace`.
    """
    require(actor, FORK)
    reason = required_reason(reason)
    next_message = optional_text("The message", message)
    title = optional_text("The title", title, 200)
    if replace is None:
        message = next_message
    elif not next_message:
        raise Invalid("Write the new message.")
    source = lock(session_id, expected_version)
    found = find_checkpoint(source, checkpoint_id)
    checkpoint, parent = found.checkpoint, found.parent
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
    if found.is_tagged:
        SessionTag.objects.bulk_create(SessionTag(session=fork, name=name) for name in _tags(source.pk))
    if replace is not None:
        _replace_message(fork, checkpoint, replace, message, actor=actor, reason=reason, now=now)
    elif message:
        InboxMessage.objects.create(session=fork, text=message, author=actor.user)
    move_to(fork, checkpoint, now)
    set_status_at(fork, checkpoint, run=run or bool(message), why=reason, now=now)
    point = {"checkpoint": checkpoint.pk, "position": checkpoint.position}
    # It has failed, or waits, as long as before.
    commit(source, FORK.event, actor, reason, {**point, "to": str(fork.pk)}, changed_at=source.updated_at)
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
    """Begin the fork with a checkpoint of its own, in whose context another text replaces that of a user's message."""
    if checkpoint.kind == Checkpoint.Kind.END:
        raise Invalid(
            "This checkpoint is the end of its turn, so the model would not read the new message. "
            "Fork from the start of a step of that turn."
        )
    branch = fork.current_branch
    context = restore.context_of(branch, checkpoint)
    replaced = next((message for message in context if message.position == position), None)
    if replaced is None or replaced.role != Message.Role.USER:
        raise NotFound(f"The model sees no user message {position} at this checkpoint.")
    place = fork.position + 1
    replacement(replaced, text, branch=branch, position=place, author=actor.name, now=now)
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


@compiled
def _tags(session_id: UUID) -> QuerySet[SessionTag, str]:
    return SessionTag.objects.filter(session=session_id).values_list("name", flat=True)
