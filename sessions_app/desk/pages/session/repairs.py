"""What the form of a repair starts from: the present memory, value or text, and what was typed back.

What is configured as hidden is hidden in it. The forms restore what was left hidden.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from agentstate.names import ENDED_CALL_STATES
from sessions_app.access.action import Action
from sessions_app.access.masking import Mask
from sessions_app.access.typed import requested_number, with_line_ends_of
from sessions_app.action_list import EDIT_MEMORY, EDIT_STATE, REPLACE_MESSAGE
from sessions_app.desk.pages import replacements
from sessions_app.desk.pages.session import state
from sessions_app.desk.pages.session.context import SessionContext
from sessions_app.history import restore
from sessions_app.history.message_rows import fill_texts
from sessions_app.history.staff_notes import note_places
from sessions_app.models import Branch, Checkpoint, Message, ToolCall

MARK = "[x]"


def initial(context: SessionContext, action: Action, query: Mapping[str, str]) -> dict[str, Any]:
    """The fields of the form of a repair, from what ``query`` names: a state key, a message's position, or a call.

    A correction that names neither a message nor a call is one of the last message of a user. The number of queries
    does not depend on how long the history is.
    """
    branch, mask = context.branch, context.mask
    if action is EDIT_MEMORY:
        return dict(memory_fields(state.memory(branch, mask=mask) or state.Memory()))
    if action is EDIT_STATE:
        return {"key": query.get("key", "")}
    if action is REPLACE_MESSAGE:
        position = _position_of_message(branch, query)
        if position is not None:
            role, text = message_at(branch, position)
            return {"position": position, "text": mask.message(role, text)}
    return {}


def newest_checkpoint_position(branch: Branch) -> int:
    """0 where there is no checkpoint. A message before it can be replaced, a call after it can be answered.

    One query for each segment of the branch until it is found.
    """
    checkpoint = restore.last_visible(Checkpoint, branch)
    return checkpoint.position if checkpoint is not None else 0


def value(branch: Branch, key: str) -> Any:
    """The present value of a state key, encoded, nothing hidden; None also where there is no such key.

    One query, or two where a tool call holds it, and those that find the newest checkpoint.
    """
    checkpoint = restore.last_visible(Checkpoint, branch)
    return restore.state_of(branch, checkpoint, only=key).get(key) if checkpoint is not None else None


def unfinished(branch: Branch, mask: Mask) -> list[ToolCall]:
    """The calls of the newest step that have not ended. One query, and those that find the newest checkpoint."""
    checkpoint = restore.last_visible(Checkpoint, branch)
    if checkpoint is None:
        return []
    calls = ToolCall.objects.visible_on(branch, after=checkpoint.position).exclude(
        status__in=ENDED_CALL_STATES
    )
    return mask.rows(calls.defer("result", "state").order_by("position"))


def message_at(branch: Branch, position: int) -> tuple[str, str]:
    """The role and the text of a message, nothing hidden; "" and "" if there is no message. At most two queries."""
    messages = fill_texts(branch, list(Message.objects.visible_on(branch).filter(position=position)))
    return (messages[0].role, messages[0].text) if messages else ("", "")


def steps_of(plan: str) -> list[tuple[str, bool]]:
    """The steps of a plan as it was typed, and whether each is completed."""
    lines = [line.strip() for line in plan.split("\n")]
    steps = [(line.removeprefix(MARK).strip(), line.startswith(MARK)) for line in lines]
    return [(step, completed) for step, completed in steps if step]


def notes_of(notes: str) -> list[str]:
    """The notes as they were typed, with an empty line between them."""
    return [note.strip() for note in notes.split("\n\n") if note.strip()]


def memory_fields(memory: state.Memory) -> dict[str, str]:
    """As `steps_of` and `notes_of` read it. Line breaks within a step and empty lines within a note are dropped."""
    steps = [(_in_one_line(step), completed) for step, completed in memory.plan]
    return {
        "goal": memory.goal,
        "plan": "\n".join(f"{MARK} {step}" if completed else step for step, completed in steps),
        "notes": "\n\n".join(map(_in_one_paragraph, memory.notes)),
    }


def typed_memory(fields: Mapping[str, str], shown: state.Memory) -> state.Memory:
    """The memory as it was typed in the fields that `memory_fields` has filled with the shown one.

    A step and a note that were not edited are those that were shown, with what the fields had dropped.
    """
    steps = steps_of(fields["plan"])
    plan = _with_shown([step for step, _ in steps], shown.parts["plan"], _in_one_line)
    return state.Memory(
        goal=with_line_ends_of(shown.goal, fields["goal"]),
        plan=[(step, completed) for step, (_, completed) in zip(plan, steps, strict=True)],
        notes=_with_shown(notes_of(fields["notes"]), shown.notes, _in_one_paragraph),
    )


def _with_shown(texts: list[str], shown: Iterable[str], as_in_field: Callable[[str], str]) -> list[str]:
    """The texts, with each that stands in the field for a shown one replaced by that."""
    originals: dict[str, list[str]] = {}
    for text in shown:
        originals.setdefault(as_in_field(text).strip(), []).append(text)
    return [originals[text].pop(0) if originals.get(text) else text for text in texts]


def _in_one_line(step: str) -> str:
    return " ".join(step.split())


def _in_one_paragraph(note: str) -> str:
    return "\n".join(line for line in note.splitlines() if line.strip())


def last_message_of_user(branch: Branch) -> int | None:
    """Position of the last of a user's messages that the model reads, not of a note of staff; None if it reads none.

    At most three queries, and those that find the newest checkpoint.
    """
    checkpoint = restore.last_visible(Checkpoint, branch)
    seen = restore.context_of(branch, checkpoint, only=["role"]) if checkpoint is not None else []
    positions = [row.position for row in seen if row.role == Message.Role.USER]
    messages = list(Message.objects.visible_on(branch).filter(position__in=positions).defer("body"))
    notes = {position for _, position in note_places(messages)}
    return next((position for position in reversed(positions) if position not in notes), None)


def _position_of_message(branch: Branch, query: Mapping[str, str]) -> int | None:
    """Position of what the model reads now in place of the named message, or of the result of the named call."""
    position = requested_number("position", query.get("position"))
    call_id = requested_number("call", query.get("call"))
    if position is None and call_id is None:
        return last_message_of_user(branch)
    if position is None and call_id is not None:
        call = ToolCall.objects.visible_on(branch).filter(pk=call_id).first()
        message = restore.answer_of(branch, call) if call is not None else None
        position = message.position if message is not None else None
    return None if position is None else replacements.on(branch, Mask.none()).current(position)
