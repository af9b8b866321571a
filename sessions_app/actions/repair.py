"""Repairs: correct the state, a message, a result or a whole step. Never in place: each repair makes a branch.

The branch and what the unfinished step has done already are the business of `sessions_app.actions.repair_branch`;
`undo` returns to how it was.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from uuid import UUID

from agentstate.domain.working_memory import WorkingMemory, keeps_working_memory
from agentstate.durable.state.tags import (
    is_well_formed,
    shape,
    tagged_values,
    with_order,
    without_order,
    without_tags,
)
from agentstate.names import ENDED_CALL_STATES, TYPE_TAG, WORKING_MEMORY_KEY
from sessions_app.access.errors import Invalid, NotFound
from sessions_app.access.roles import Actor
from sessions_app.action_list import (
    ANSWER_CALL,
    ANSWER_STEP,
    EDIT_MEMORY,
    EDIT_STATE,
    REPLACE_MESSAGE,
    REWIND,
)
from sessions_app.actions import repair_branch
from sessions_app.actions.base import in_one_transaction, json_object, require, required_result, required_text
from sessions_app.actions.repair_branch import RepairDraft
from sessions_app.history import restore
from sessions_app.history.message_rows import fill_texts
from sessions_app.models import CallStatus, Session, ToolCall

Json = Any


@in_one_transaction
def edit_state(
    *,
    actor: Actor,
    session_id: UUID | str,
    values: dict[str, Json],
    reason: str,
    expected_version: int | None = None,
) -> Session:
    """Set state keys to other values, encoded as `StateValue` stores them.

    :raises Invalid: for a key that the session does not have, a value of another type than the present one's, or one
        that cannot be stored. A null value has no type: any value may take its place.
    """
    require(actor, EDIT_STATE)
    values = json_object("The state", values)
    draft = repair_branch.begin(EDIT_STATE, actor, session_id, reason, expected_version)
    values = {key: without_order(value) for key, value in values.items()}
    return _set_values(draft, _present_values(draft), values)


def _present_values(draft: RepairDraft) -> dict[str, Json]:
    """By their keys, encoded, with their keys in order: the tags that keep it are written when they are stored."""
    stored = restore.state_of(draft.repaired, draft.checkpoint)
    return {key: without_order(value) for key, value in stored.items()}


def _set_values(
    draft: RepairDraft, current_values: Mapping[str, Json], values: Mapping[str, Json]
) -> Session:
    for key, value in values.items():
        if key == WORKING_MEMORY_KEY and key not in current_values:
            if not keeps_working_memory(restore.tools_of(draft.repaired, draft.checkpoint)):
                raise Invalid("This agent keeps no working memory.")
        elif key not in current_values:
            raise Invalid(
                f"There is no state key {key!r}. There are: {', '.join(sorted(current_values)) or 'none'}."
            )
        before = current_values.get(key)
        if before is not None and value_type(before) != value_type(value):
            raise Invalid(f"{key} must be {value_type(before)}, not {value_type(value)}.")
        _check_tags(key, value, before)
    draft.state = {
        key: value
        for key, value in values.items()
        # Two objects are equal whose keys have another order, their stored forms are not.
        if with_order(current_values.get(key)) != with_order(value)
    }
    if not draft.state:
        raise Invalid("Nothing was changed.")
    return draft.commit("state", {"keys": sorted(draft.state)})


@in_one_transaction
def edit_memory(
    *,
    actor: Actor,
    session_id: UUID | str,
    goal: str | None = None,
    plan: list[str] | None = None,
    completed: list[str] | None = None,
    notes: list[str] | None = None,
    reason: str,
    expected_version: int | None = None,
) -> Session:
    """Set parts of the agent's working memory.

    What is None stays as it is stored, as do notes with a key, and keys that the agent's own code has put beside these.

    :raises Invalid: for a completed step that the plan does not have, and for what is not text.
    """
    require(actor, EDIT_MEMORY)
    draft = repair_branch.begin(EDIT_MEMORY, actor, session_id, reason, expected_version)
    current_values = _present_values(draft)
    stored = current_values.get(WORKING_MEMORY_KEY)
    parts = {"goal": goal, "plan": plan, "completed": completed, "notes": notes}
    try:
        memory = _memory_with(stored, {name: part for name, part in parts.items() if part is not None})
    except (TypeError, ValueError) as error:
        raise Invalid(str(error)) from None
    return _set_values(draft, current_values, json_object("The state", {WORKING_MEMORY_KEY: memory}))


def _memory_with(stored: Json, parts: Mapping[str, Any]) -> Json:
    """
    :param parts: By their stored names.
    :raises TypeError: for what is not text.
    :raises ValueError: for a completed step that the plan does not have.
    """
    if not parts:
        return stored
    memory = WorkingMemory.from_stored(without_tags(stored))
    fields = {"goal": "current_goal", "plan": "plan_steps", "completed": "completed_steps", "notes": "notes"}
    memory = replace(memory, **{fields[name]: part for name, part in parts.items()})
    if "completed" in parts:
        memory.check()
    after = memory.to_stored()
    return {**stored, **{name: after[name] for name in parts}} if isinstance(stored, dict) else after


@in_one_transaction
def replace_message(
    *,
    actor: Actor,
    session_id: UUID | str,
    position: int,
    text: str,
    reason: str,
    rewind: bool = False,
    expected_version: int | None = None,
) -> Session:
    """Let the model read another text in place of a message's text or a tool's result.

    :param rewind: Discard what came after the message was read for the first time, and resume there.
    :raises NotFound: if the model does not see a message at this position.
    """
    require(actor, REPLACE_MESSAGE)
    if rewind:
        require(actor, REWIND)
    text = required_text("The text", text)
    draft = repair_branch.begin(
        REPLACE_MESSAGE, actor, session_id, reason, expected_version, step_after=position if rewind else None
    )
    context = fill_texts(draft.repaired, restore.context_of(draft.repaired, draft.checkpoint))
    message = next((message for message in context if message.position == position), None)
    if message is None:
        raise NotFound(
            f"The model sees no message {position} at {'this' if rewind else 'the last'} checkpoint."
        )
    if message.text.strip() == text:
        raise Invalid("Nothing was changed.")
    replacement = draft.add_message(message, text)
    if draft.turn_has_ended and message is restore.answering(context, draft.checkpoint):
        draft.final_answer = text
    draft.context = [replacement.position if row.position == position else row.position for row in context]
    data: dict[str, Json] = {"position": position, "by": replacement.position, "role": message.role}
    if rewind:
        data["rewound"] = True
    if call := restore.call_answered_by(draft.repaired, message):
        data |= {"call": call.pk, "tool": call.tool, "call_position": call.position}
    return draft.commit("message", data)


@in_one_transaction
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
    """Answer a call of the unfinished step in place of its tool: give its `result`, or `skip` it with a message.

    A call that has ended already gets another answer; the model reads only that one.

    :param call_id: The row's primary key.
    """
    require(actor, ANSWER_CALL)
    if (result is None) == (skip is None):
        raise Invalid("Choose one: enter the call's result, or skip it.")
    text = (
        required_text("The message to the model", skip or "") if result is None else required_result(result)
    )
    draft = repair_branch.begin(ANSWER_CALL, actor, session_id, reason, expected_version)
    call = ToolCall.objects.filter(
        pk=call_id, branch=draft.repaired, position__gt=draft.checkpoint.position
    ).first()
    if call is None:
        raise NotFound(
            "This call is not part of the unfinished step. Correct its result in the conversation instead."
        )
    draft.answers = {call.position: (CallStatus.SKIPPED if result is None else CallStatus.DONE, text)}
    return draft.commit("call", call.reference())


@in_one_transaction
def answer_step(
    *,
    actor: Actor,
    session_id: UUID | str,
    results: Mapping[int, str],
    reason: str,
    expected_version: int | None = None,
) -> Session:
    """Complete the unfinished step manually: give the result of each of its calls that has not ended.

    :param results: By the calls' primary keys.
    :raises Invalid: if one is missing, or is not an open call of this step.
    """
    require(actor, ANSWER_STEP)
    texts = {pk: required_result(text) for pk, text in results.items()}
    draft = repair_branch.begin(ANSWER_STEP, actor, session_id, reason, expected_version)
    unfinished = ToolCall.objects.visible_on(draft.repaired, after=draft.checkpoint.position).exclude(
        status__in=ENDED_CALL_STATES
    )
    calls = {call.pk: call for call in unfinished.order_by("position")}
    if not calls:
        raise Invalid("Every call of this step has ended: there is nothing to complete manually.")
    if missing := [call.tool for pk, call in calls.items() if pk not in texts]:
        raise Invalid(f"The result of {', '.join(missing)} is missing.")
    if texts.keys() - calls.keys():
        raise Invalid("One of the calls that you answered is not an open call of this step.")
    draft.answers = {calls[pk].position: (CallStatus.DONE, text) for pk, text in texts.items()}
    return draft.commit("step", {"calls": sorted(calls), "step": draft.checkpoint.step + 1})


def _check_tags(key: str, value: Json, before: Json) -> None:
    """Check that an agent can read the tagged values in a new value, as it can those in the present one.

    :raises Invalid: for a tag that the present value does not have, and for one with what is no value of its type.
    """
    types = {str(tagged[TYPE_TAG]) for tagged in tagged_values(before)}
    shapes = {shape(tagged) for tagged in tagged_values(before)}
    for tagged in tagged_values(value):
        tag = str(tagged[TYPE_TAG])
        if tag not in types:
            raise Invalid(
                f"{key} contains no value of the type {tag!r}, so its new value cannot contain one."
            )
        if not is_well_formed(tagged, shapes):
            raise Invalid(f"{key} is not a valid {tag}: use the format of the current value.")


def value_type(value: Json) -> str:
    """The type of an encoded value, in words."""
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
