"""What a repair begins with: the present memory, value or words, as they stand in the form.

There what is configured is hidden. The forms put it back where it was left as it stood.
"""

from collections.abc import Mapping
from typing import Any

from sessions_app.access.masking import Mask
from sessions_app.desk.pages.session import replacements, state
from sessions_app.history import restore
from sessions_app.history.message_rows import fill_texts
from sessions_app.models import Branch, Checkpoint, Message, Session, ToolCall
from sessions_app.models.toolcall import ENDED

MARK = "[x]"


def branch_of(session: Session) -> Branch:
    assert session.branch is not None, f"session {session.pk} has no branch"
    return session.branch


def initial(branch: Branch, name: str, query: Mapping[str, str], mask: Mask) -> dict[str, Any]:
    """The fields of the repair ``name``, by what ``query`` names: a state key, a message's position, or a call."""
    match name:
        case "memory":
            return _memory(state.memory(branch, mask=mask) or state.Memory())
        case "state-value":
            return {"key": query.get("key", "")}
        case "words":
            position = _message(branch, query)
            if position is None:
                return {}
            return {"position": position, "text": mask.text(words(branch, position))}
    return {}


def place(branch: Branch) -> int:
    """Where the newest checkpoint lies, 0 for none: what is before it can be replaced, what is after it answered."""
    at = restore.last_visible(Checkpoint, branch)
    return at.position if at is not None else 0


def value(branch: Branch, key: str) -> Any:
    """The present value of a state key, encoded, nothing hidden; None also where there is no such key."""
    at = restore.last_visible(Checkpoint, branch)
    return restore.state_of(branch, at).get(key) if at is not None else None


def unfinished(branch: Branch, mask: Mask) -> list[ToolCall]:
    """The calls of the newest step that have not ended."""
    at = restore.last_visible(Checkpoint, branch)
    if at is None:
        return []
    calls = ToolCall.objects.visible_on(branch, after=at.position).exclude(status__in=ENDED)
    return mask.rows(calls.defer("result", "state").order_by("position"))


def steps_of(plan: str) -> list[tuple[str, bool]]:
    """The steps of a plan as it was typed, and whether each is completed."""
    lines = [line.strip() for line in plan.split("\n")]
    steps = [(line.removeprefix(MARK).strip(), line.startswith(MARK)) for line in lines]
    return [(step, did) for step, did in steps if step]


def notes_of(notes: str) -> list[str]:
    return [note.strip() for note in notes.split("\n\n") if note.strip()]


def _memory(memory: state.Memory) -> dict[str, str]:
    """As `steps_of` and `notes_of` read it. A line break within a step, or an empty line within a note, is given up."""
    steps = [(" ".join(step.split()), did) for step, did in memory.plan]
    notes = ["\n".join(line for line in note.splitlines() if line.strip()) for note in memory.notes]
    return {
        "goal": memory.goal,
        "plan": "\n".join(f"{MARK} {step}" if did else step for step, did in steps),
        "notes": "\n\n".join(notes),
    }


def _message(branch: Branch, query: Mapping[str, str]) -> int | None:
    """Where the words stand that the model reads now: a message's, or those that told the end of a call."""
    position: int | None = None
    if query.get("position", "").isdecimal():
        position = int(query["position"])
    elif query.get("call", "").isdecimal():
        call = ToolCall.objects.visible_on(branch).filter(pk=int(query["call"])).first()
        told = restore.told_of(branch, call) if call is not None else None
        position = told.position if told is not None else None
    return None if position is None else replacements.on(branch, Mask.none()).now(position)


def words(branch: Branch, position: int) -> str:
    """A message's text as it is, nothing hidden: for what is to be kept of it."""
    found = fill_texts(branch, list(Message.objects.visible_on(branch).filter(position=position)))
    return found[0].text if found else ""
