"""Repairs: another state, another message, another answer. Never in place: each makes a branch.

The new branch leaves the present one at its last checkpoint and begins with a checkpoint of its own that holds what
was changed. What the present step has done already (the model's reply, its calls) is carried over, so that nothing
is asked or run again; `undo` returns to how it was.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import transaction
from django.forms.models import model_to_dict
from django.utils import timezone

from agentstate.durable.working_memory import WorkingMemory, keeps_working_memory
from agentstate.names import ENDED_CALL_STATES, TYPE_TAG, WORKING_MEMORY_KEY
from sessions_app.access.errors import Invalid, NotFound
from sessions_app.access.roles import Actor
from sessions_app.actions.base import branch_of, check, commit, given, lock, require, settle, storable
from sessions_app.actions.history import leave, next_number
from sessions_app.history import restore
from sessions_app.history.message_rows import RESULT_OF, fill_texts
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
)

Json = Any


@dataclass
class _Bench:
    """What is being repaired: the branch as it was, the new one, and what changes on it."""

    session: Session
    old: Branch
    new: Branch
    base: Checkpoint
    now: datetime
    state: dict[str, Json] = field(default_factory=dict)
    context: list[int] | None = None
    answers: dict[int, tuple[CallStatus, str]] = field(default_factory=dict)


@transaction.atomic(durable=True)
def edit_state(
    *,
    actor: Actor,
    session_id: UUID | str,
    values: dict[str, Json],
    reason: str,
    expected_version: int | None = None,
) -> Session:
    """Give state keys other values, encoded as `StateValue` stores them.

    :raises Invalid: for a key that the session does not have, a value of another type than the present one's, or one
        that no database could store. An empty value has no type: anything may take its place.
    """
    require(actor, "repair")
    values = storable("The state", values)
    bench = _begin(actor, session_id, reason, expected_version)
    present = restore.state_of(bench.old, bench.base)
    for key, value in values.items():
        if key == WORKING_MEMORY_KEY and key not in present:
            if not keeps_working_memory(restore.tools_of(bench.old, bench.base)):
                raise Invalid("This agent keeps no working memory.")
        elif key not in present:
            raise Invalid(
                f"There is no state key {key!r}. There are: {', '.join(sorted(present)) or 'none'}."
            )
        was = present.get(key)
        if was is not None and kind(was) != kind(value):
            raise Invalid(f"{key} must be {kind(was)}, not {kind(value)}.")
        if strange := _tags(value) - _tags(was):
            raise Invalid(
                f"{key} holds nothing of the type {min(strange)!r} now, so its new value cannot either."
            )
    bench.state = {key: value for key, value in values.items() if present.get(key) != value}
    if not bench.state:
        raise Invalid("Nothing was changed.")
    return _finish(bench, actor, reason, "state", {"keys": sorted(bench.state)})


def edit_memory(
    *,
    actor: Actor,
    session_id: UUID | str,
    goal: str,
    plan: list[str],
    completed: list[str],
    notes: list[str],
    reason: str,
    expected_version: int | None = None,
) -> Session:
    """Set the agent's working memory.

    :raises Invalid: for a completed step that the plan does not have.
    """
    require(actor, "repair")
    memory = WorkingMemory(goal, tuple(plan), tuple(completed), tuple(notes))
    try:
        memory.check()
    except ValueError as error:
        raise Invalid(str(error)) from None
    return edit_state(
        actor=actor,
        session_id=session_id,
        values={WORKING_MEMORY_KEY: memory.to_stored()},
        reason=reason,
        expected_version=expected_version,
    )


@transaction.atomic(durable=True)
def replace_message(
    *,
    actor: Actor,
    session_id: UUID | str,
    position: int,
    text: str,
    reason: str,
    expected_version: int | None = None,
) -> Session:
    """Let the model see other words in place of a message's, or of a tool's result.

    :raises NotFound: if the model does not see a message at this position.
    """
    require(actor, "repair")
    text = given("The text", text)
    bench = _begin(actor, session_id, reason, expected_version)
    context = restore.context_of(bench.old, bench.base)
    message = next(
        (message for message in fill_texts(bench.old, context) if message.position == position), None
    )
    if message is None:
        raise NotFound(f"The model sees no message {position} at the last checkpoint.")
    if message.text == text:
        raise Invalid("Nothing was changed.")
    bench.session.position += 1
    Message.objects.create(
        branch=bench.new,
        position=bench.session.position,
        role=message.role,
        text=text,
        body=_with_room(message),
        author=actor.name,
        created_at=bench.now,
    )
    bench.context = [bench.session.position if m.position == position else m.position for m in context]
    data = {"position": position, "by": bench.session.position, "role": message.role}
    if call := restore.call_answered_by(bench.old, message):
        data |= {"call": call.pk, "tool": call.tool, "call_position": call.position}
    return _finish(bench, actor, reason, "message", data)


@transaction.atomic(durable=True)
def answer_call(
    *,
    actor: Actor,
    session_id: UUID | str,
    call_id: int,
    reason: str,
    result: str | None = None,
    skip: str | None = None,
    expected_version: int | None = None,
) -> Session:
    """Answer for a tool of the unfinished step: give its `result`, or `skip` it with a message to the model.

    A call that has ended already gets another answer; the model sees only that one.

    :param call_id: The row's primary key.
    """
    require(actor, "repair")
    if (result is None) == (skip is None):
        raise Invalid("Choose one: enter the call's result, or skip it.")
    text = given("The result" if result is not None else "The message to the model", result or skip or "")
    bench = _begin(actor, session_id, reason, expected_version)
    call = ToolCall.objects.filter(pk=call_id, branch=bench.old, position__gt=bench.base.position).first()
    if call is None:
        raise NotFound(
            "This call is no part of the unfinished step. Replace its result in the conversation instead."
        )
    bench.answers = {call.position: (CallStatus.SKIPPED if result is None else CallStatus.DONE, text)}
    data = {"call": call.pk, "call_id": call.call_id, "tool": call.tool, "position": call.position}
    return _finish(bench, actor, reason, "call", data)


@transaction.atomic(durable=True)
def answer_step(
    *,
    actor: Actor,
    session_id: UUID | str,
    results: Mapping[int, str],
    reason: str,
    expected_version: int | None = None,
) -> Session:
    """Mark the unfinished step as done by hand: give the result of every call of it that has not ended.

    :param results: By the calls' primary keys.
    :raises Invalid: if one is missing, or the step has no such open call.
    """
    require(actor, "repair")
    texts = {pk: given("The result", text) for pk, text in results.items()}
    bench = _begin(actor, session_id, reason, expected_version)
    unfinished = ToolCall.objects.visible_on(bench.old, after=bench.base.position).exclude(
        status__in=ENDED_CALL_STATES
    )
    calls = {call.pk: call for call in unfinished.order_by("position")}
    if not calls:
        raise Invalid("Every call of this step has ended: there is nothing to do by hand.")
    if missing := [call.tool for pk, call in calls.items() if pk not in texts]:
        raise Invalid(f"The result of {', '.join(missing)} is missing.")
    if texts.keys() - calls.keys():
        raise Invalid("A call that was answered is no open call of this step.")
    bench.answers = {calls[pk].position: (CallStatus.DONE, text) for pk, text in texts.items()}
    return _finish(bench, actor, reason, "step", {"calls": sorted(calls), "step": bench.base.step + 1})


def _begin(actor: Actor, session_id: UUID | str, reason: str, expected_version: int | None) -> _Bench:
    reason = given("The reason", reason)
    session = lock(session_id, expected_version)
    check(session, "repair")
    old = branch_of(session)
    base = restore.last_visible(Checkpoint, old)
    if base is None:
        raise Invalid("It has not begun yet, so there is nothing to repair.")
    now = timezone.now()
    left = leave(session)
    new = Branch.objects.create(
        session=session,
        number=next_number(session),
        parent=old,
        undo_to=left,
        left_at=base.position,
        lineage=old.lineage_at(base.position),
        created_at=now,
        created_by=actor.user,
        reason=reason,
    )
    return _Bench(session, old, new, base, now)


def _finish(bench: _Bench, actor: Actor, reason: str, what: str, data: dict[str, Json]) -> Session:
    session, base = bench.session, bench.base
    checkpoint = _checkpoint(bench)
    _carry_over(bench, actor)
    session.branch = bench.new
    if base.kind == Checkpoint.Kind.END and session.phase == Phase.DONE and not session.inbox.exists():
        settle(session, Status.IDLE)
    else:
        _rest(bench, why=reason.strip())
    numbers = {"from_branch": bench.old.number, "to_branch": bench.new.number, "checkpoint": checkpoint.pk}
    return commit(session, "repaired", actor, reason.strip(), {"what": what, **data, **numbers})


def _checkpoint(bench: _Bench) -> Checkpoint:
    session, base = bench.session, bench.base
    session.position += 1
    place = session.position
    StateValue.objects.bulk_create(
        StateValue(branch=bench.new, position=place, key=key, value=value)
        for key, value in bench.state.items()
    )
    return Checkpoint.objects.create(
        branch=bench.new,
        position=place,
        kind=base.kind,
        step=base.step,
        phase=base.phase,
        context=restore.ranges(bench.context) if bench.context is not None else None,
        context_at=place if bench.context is not None else base.context_at,
        keys={**base.keys, **dict.fromkeys(bench.state, place)},
        counters=base.counters,
        tools=list(restore.tools_of(bench.old, base)),
        outcome=base.outcome,
        totals=base.totals,
        definition=base.definition,
        created_at=bench.now,
    )


def _carry_over(bench: _Bench, actor: Actor) -> None:
    """Copy what the unfinished step has done, in its order. A copied call keeps its idempotency key: it is the same."""
    models = (ModelCall, Message, ToolCall)
    rows: list[Any] = [
        row for model in models for row in model.objects.visible_on(bench.old, after=bench.base.position)
    ]
    approvals = {a.call_id: a for a in Approval.objects.filter(call__branch=bench.old)}
    for row in sorted(rows, key=lambda row: row.position):
        pk, before = row.pk, row.position
        bench.session.position += 1
        row.pk, row._state.adding = None, True
        row.branch, row.position = bench.new, bench.session.position
        if isinstance(row, ToolCall) and before in bench.answers:
            _answer(row, *bench.answers[before], by=actor.name, at=bench.now)
        row.save(force_insert=True)
        if pk in approvals and isinstance(row, ToolCall):
            _copy_approval(approvals[pk], row)


def _answer(call: ToolCall, status: CallStatus, text: str, *, by: str, at: datetime) -> None:
    call.status = status
    call.result, call.error = (text, "") if status == CallStatus.DONE else (None, text)
    call.state, call.lossy, call.cached = None, False, False
    call.decided_by, call.ended_at = by, at


def _copy_approval(approval: Approval, call: ToolCall) -> None:
    yes = (Approval.Decision.APPROVED, Approval.Decision.REUSED)
    if call.status in ENDED_CALL_STATES and approval.decision not in yes:
        return  # a person has answered for the call: nobody's yes is wanted, and no old no counts
    fields = model_to_dict(
        approval, fields=["arguments", "fingerprint", "decision", "edited", "message", "decided_by"]
    )
    Approval.objects.create(
        session_id=approval.session_id,
        call=call,
        repeats=approval.repeats,
        asked_at=approval.asked_at,
        expires_at=approval.expires_at,
        decided_at=approval.decided_at,
        **fields,
    )


def _rest(bench: _Bench, *, why: str) -> None:
    """What the carried-over step still needs of a person keeps the session waiting; else it is paused."""
    session = bench.session
    calls = ToolCall.objects.filter(branch=bench.new)
    # Nothing runs any more: the worker, if there was one, has been fenced off.
    calls.filter(status=CallStatus.STARTED).update(status=CallStatus.DOUBT)
    waited_for = session.why
    settle(session, Status.PAUSED, why=why)
    if calls.filter(status=CallStatus.DOUBT).exists():
        session.status, session.waiting_for, session.why = Status.WAITING, WaitingFor.DOUBT, waited_for
    elif calls.filter(approval__decision="").exists():
        session.status, session.waiting_for, session.why = Status.WAITING, WaitingFor.APPROVAL, waited_for
    if session.phase == "error":
        session.phase, session.previous_phase, session.error = bench.base.phase, "", ""
        session.phase_since = bench.now


def _with_room(message: Message) -> dict[str, Json]:
    """The message's body with one place for other words: its text, or its tool's result, whatever stood there."""
    body = {key: value for key, value in message.body.items() if key != RESULT_OF}
    content = [dict(part) for part in body.get("content", ())]
    for part in content:
        if "tool_call_result" in part:
            part["tool_call_result"] = {**part["tool_call_result"], "result": None}
            break
        if "text" in part:
            part["text"] = None
            break
    else:
        content.insert(0, {"text": None})
    return {**body, "content": content}


def _tags(value: Json) -> set[str]:
    """The types, beyond those of plain JSON, of what the encoded value holds."""
    if isinstance(value, list):
        return {tag for item in value for tag in _tags(item)}
    if not isinstance(value, dict):
        return set()
    return {tag for item in value.values() for tag in _tags(item)} | (
        {str(value[TYPE_TAG])} if TYPE_TAG in value else set()
    )


def kind(value: Json) -> str:
    """What an encoded value is, in words."""
    if value is None:
        return "empty"
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, str):
        return "text"
    if isinstance(value, list):
        return "a list"
    tag = value.get(TYPE_TAG) if isinstance(value, dict) else None
    return f"a {tag}" if tag else "an object"
