"""The branch that a repair makes: a checkpoint of its own that holds what was changed, and the unfinished step's work.

The new branch leaves the present one at its last checkpoint. What the unfinished step has done already (the model's
reply, its calls and approvals) is copied to it, so that nothing is asked or run again. A repair that also rewinds
leaves the current branch at an earlier checkpoint, and the session runs on from there. The session's row is locked by
`begin`, inside the action's transaction.
"""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from django.forms.models import model_to_dict
from django.utils import timezone

from agentstate.durable.policy import fingerprint
from agentstate.durable.state.tags import with_order
from agentstate.names import ENDED_CALL_STATES
from sessions_app.access.action import Action
from sessions_app.access.errors import Invalid
from sessions_app.access.roles import Actor
from sessions_app.actions.base import (
    check,
    commit,
    count_ended_call,
    lock,
    required_reason,
    set_status,
)
from sessions_app.actions.calls import why_of_others
from sessions_app.actions.history import leave, move_to, set_status_at
from sessions_app.actions.replaced_messages import replacement
from sessions_app.history import from_state, restore
from sessions_app.history.message_rows import pack
from sessions_app.models import (
    Approval,
    Branch,
    CallStatus,
    Checkpoint,
    Message,
    ModelCall,
    Phase,
    Session,
    StateValue,
    Status,
    ToolCall,
    WaitingFor,
    next_number,
)

Json = Any


@dataclass
class RepairDraft:
    """A repair until it is committed: the branch that is repaired, the new one, and what changes on it.

    ``context`` are the positions that the model sees; ``answers`` are by the position of a call on the repaired branch.
    ``final_answer`` is that of a turn that has ended, where the repair changed it. Without ``copies_step`` the
    unfinished step begins again. With ``rewinds``, the session runs on from the checkpoint, and what came after it is
    discarded.
    """

    action: Action
    actor: Actor
    reason: str
    session: Session
    repaired: Branch
    new_branch: Branch
    checkpoint: Checkpoint
    now: datetime
    state: dict[str, Json] = field(default_factory=dict)  # by key, without tags that keep the order of keys
    context: list[int] | None = None
    answers: dict[int, tuple[CallStatus, str]] = field(default_factory=dict)
    final_answer: str | None = None
    copies_step: bool = True
    rewinds: bool = False

    def next_position(self) -> int:
        self.session.position += 1
        return self.session.position

    @property
    def turn_has_ended(self) -> bool:
        """Whether the checkpoint is the end of its turn, with an answer."""
        return self.checkpoint.kind == Checkpoint.Kind.END

    def add_message(self, original: Message, text: str) -> Message:
        """A message on the new branch that replaces the original, with another text."""
        return replacement(
            original,
            text,
            branch=self.new_branch,
            position=self.next_position(),
            author=self.actor.name,
            now=self.now,
        )

    def add_body(self, body: dict[str, Json]) -> Message:
        """A new message on the new branch, from the whole `ChatMessage.to_dict()`."""
        role, text, rest = pack(body)
        return Message.objects.create(
            branch=self.new_branch,
            position=self.next_position(),
            role=role,
            text=text,
            body=rest,
            author=self.actor.name if role == Message.Role.USER else "",
            created_at=self.now,
        )

    def commit(self, what: str, data: dict[str, Json]) -> Session:
        """Write the new checkpoint, copy the unfinished step, and move the session to the new branch."""
        session = self.session
        checkpoint = _write_checkpoint(self)
        if self.copies_step and not self.rewinds:
            _copy_unfinished_step(self)
        session.branch = self.new_branch
        if self.rewinds:
            move_to(session, checkpoint, self.now)
            set_status_at(session, checkpoint, run=True, why=self.reason, now=self.now)
            return self._commit(what, data, checkpoint)
        turn_over = self.turn_has_ended and session.phase == Phase.DONE
        if turn_over and self.final_answer is not None:
            session.final_answer = self.final_answer
        if turn_over and not session.inbox.exists():
            set_status(session, Status.IDLE)
        else:
            _set_status_of_step(self)
        return self._commit(what, data, checkpoint)

    def _commit(self, what: str, data: dict[str, Json], checkpoint: Checkpoint) -> Session:
        branches = {"from_branch": self.repaired.number, "to_branch": self.new_branch.number}
        return commit(
            self.session,
            self.action.event,
            self.actor,
            self.reason,
            {"what": what, **data, **branches, "checkpoint": checkpoint.pk},
        )


def begin(
    action: Action,
    actor: Actor,
    session_id: UUID | str,
    reason: str,
    expected_version: int | None,
    *,
    step_after: int | None = None,
) -> RepairDraft:
    """Lock the session, check that it can be repaired, and make the new branch.

    :param step_after: Rewind to the start of the first step after this position, instead of repairing the last
        checkpoint.
    :raises Invalid: for a session that has no checkpoint yet, and where no step started after that position.
    """
    reason = required_reason(reason)
    session = lock(session_id, expected_version)
    check(session, action)
    repaired = session.current_branch
    checkpoint = restore.last_visible(Checkpoint, repaired)
    if checkpoint is None:
        raise Invalid("It has not started yet, so there is nothing to repair.")
    if step_after is not None:
        checkpoint = restore.step_after(repaired, step_after)
        if checkpoint is None:
            raise Invalid("No step has started since then: save the correction, then resume.")
    now = timezone.now()
    new_branch = Branch.objects.create(
        session=session,
        number=next_number(session),
        parent=repaired,
        undo_to=leave(session),
        left_at=checkpoint.position,
        lineage=repaired.lineage_at(checkpoint.position),
        created_at=now,
        created_by=actor.user,
        reason=reason,
    )
    rewinds = step_after is not None
    return RepairDraft(action, actor, reason, session, repaired, new_branch, checkpoint, now, rewinds=rewinds)


def _write_checkpoint(draft: RepairDraft) -> Checkpoint:
    base, position = draft.checkpoint, draft.next_position()
    outcome = base.outcome
    if outcome is not None and draft.final_answer is not None:
        outcome = {**outcome, "final_answer": draft.final_answer}
    StateValue.objects.bulk_create(
        StateValue(branch=draft.new_branch, position=position, key=key, value=with_order(value))
        for key, value in draft.state.items()
    )
    return Checkpoint.objects.create(
        branch=draft.new_branch,
        position=position,
        kind=base.kind,
        step=base.step,
        phase=base.phase,
        context=restore.ranges(draft.context) if draft.context is not None else None,
        context_at=position if draft.context is not None else base.context_at,
        keys={**base.keys, **dict.fromkeys(draft.state, position)},
        counters=base.counters,
        tools=list(restore.tools_of(draft.repaired, base)),
        outcome=outcome,
        totals=base.totals,
        definition=base.definition,
        created_at=draft.now,
    )


def _copy_unfinished_step(draft: RepairDraft) -> None:
    """Copy the rows of the unfinished step in their order. A copied call is the same call, with the same key."""
    models = (ModelCall, Message, ToolCall)
    rows: list[Any] = [
        row
        for model in models
        for row in model.objects.visible_on(draft.repaired, after=draft.checkpoint.position)
    ]
    approvals = {
        approval.call_id: approval for approval in Approval.objects.filter(call__branch=draft.repaired)
    }
    has_ended_calls = any(isinstance(row, ToolCall) and row.status in ENDED_CALL_STATES for row in rows)
    for row in sorted(rows, key=lambda row: row.position):
        old_pk, old_position = row.pk, row.position
        row.pk, row._state.adding = None, True
        row.branch, row.position = draft.new_branch, draft.next_position()
        if isinstance(row, ToolCall):
            row.copy_of_id = row.copy_of_id or old_pk
            if old_position in draft.answers:
                if row.status in ENDED_CALL_STATES:
                    draft.session.totals = _without_end(draft.session.totals, row)
                else:
                    count_ended_call(draft.session)
                _answer(row, *draft.answers[old_position], by=draft.actor.name, at=draft.now)
        row.save(force_insert=True)
        if old_pk in approvals and isinstance(row, ToolCall):
            # What a call of the step has left in the State is there for the next ones: only a worker can tell what
            # these are given then.
            _copy_approval(approvals[old_pk], row, {} if has_ended_calls else draft.state)


def _without_end(totals: dict[str, Json], call: ToolCall) -> dict[str, Json]:
    """The totals without what they count of how the call ended: a person answers it instead."""
    if call.status == CallStatus.FAILED:
        totals = _less_one(totals, "tool_errors")
    return _less_one(totals, "cached") if call.cached else totals


def _answer(call: ToolCall, status: CallStatus, text: str, *, by: str, at: datetime) -> None:
    call.status = status
    call.result, call.error = (text, "") if status == CallStatus.DONE else (None, text)
    call.state, call.lossy, call.cached = None, False, False
    call.decided_by, call.ended_at = by, at


def _copy_approval(approval: Approval, call: ToolCall, state: dict[str, Json]) -> None:
    """:param state: What was repaired, by key: an open request shows it, and whoever approves it has seen it."""
    approving = (Approval.Decision.APPROVED, Approval.Decision.REUSED)
    if call.status in ENDED_CALL_STATES and approval.decision not in approving:
        return  # A person has answered the call: no approval is needed, and an earlier rejection does not count.
    if state and not approval.decision and approval.from_state_digests:
        from_state.set_values(approval, {key: with_order(value) for key, value in state.items()})
        digests = {name: taken["digest"] for name, taken in approval.from_state_digests.items()}
        approval.fingerprint = fingerprint(call.tool, approval.run_arguments, digests)
    fields = model_to_dict(
        approval, fields=["arguments", "fingerprint", "decision", "edited", "message", "decided_by"]
    )
    Approval.objects.create(
        session_id=approval.session_id,
        call=call,
        repeats_id=approval.repeats_id,
        earlier=approval.earlier,
        from_state=approval.from_state,
        from_state_digests=approval.from_state_digests,
        asked_at=approval.asked_at,
        expires_at=approval.expires_at,
        decided_at=approval.decided_at,
        **fields,
    )


def _set_status_of_step(draft: RepairDraft) -> None:
    """Keep the session waiting for what the copied step still needs of a person; else pause it."""
    session = draft.session
    calls = ToolCall.objects.filter(branch=draft.new_branch)
    # No worker runs them any more: the one that did has lost its lease.
    calls.filter(status=CallStatus.STARTED).update(status=CallStatus.DOUBT)
    waited_because = session.why
    set_status(session, Status.PAUSED, why=draft.reason)
    if left := list(calls.filter(status=CallStatus.DOUBT).values_list("tool", flat=True)):
        answered = ToolCall.objects.filter(branch=draft.repaired, position__in=draft.answers)
        waited_because = why_of_others(waited_because, answered.values_list("tool", flat=True), left)
        session.status, session.waiting_for, session.why = Status.WAITING, WaitingFor.DOUBT, waited_because
    elif calls.filter(approval__decision="").exists():
        session.status, session.waiting_for, session.why = Status.WAITING, WaitingFor.APPROVAL, waited_because
    if not draft.copies_step and not draft.turn_has_ended:
        session.totals = draft.checkpoint.totals
        _set_phase(draft, draft.checkpoint.phase)
    elif session.phase == Phase.ERROR:
        if session.previous_phase:
            session.totals = _without_error(session.totals, after=session.previous_phase)
        _set_phase(draft, session.previous_phase or draft.checkpoint.phase)


def _set_phase(draft: RepairDraft, phase: str) -> None:
    """The phase in which the repaired history goes on. What was before it is not in that history, or not known."""
    session = draft.session
    if session.phase != phase or session.error:
        session.phase, session.previous_phase, session.error = phase, "", ""
        session.phase_since = draft.now


def _without_error(totals: dict[str, Json], *, after: str) -> dict[str, Json]:
    """The totals before the agent failed in the phase: it goes on as if it had not."""
    edges, visits = totals.get("edges", {}), totals.get("visits", {})
    return {
        **totals,
        "edges": _less_one(edges, f"{after}>{Phase.ERROR.value}"),
        "visits": _less_one(visits, Phase.ERROR.value),
    }


def _less_one(numbers: dict[str, Json], name: str) -> dict[str, Json]:
    left = numbers.get(name, 0) - 1
    others = {key: number for key, number in numbers.items() if key != name}
    return {**others, name: left} if left > 0 else others
