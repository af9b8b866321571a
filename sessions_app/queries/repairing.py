"""What a repair begins with: the present memory, value or words, as they stand in the form."""

import json
from collections.abc import Mapping
from typing import Any

from sessions_app import restore
from sessions_app.models import Branch, Checkpoint, Message
from sessions_app.packing import fill_texts
from sessions_app.queries import state


def initial(branch: Branch, query: Mapping[str, str]) -> dict[str, Any]:
    """The form's fields, by what ``query`` names: a state ``key``, a message's ``position``, or else the memory."""
    if key := query.get("key", ""):
        return {"key": key, "value": _value(branch, key)}
    if (position := query.get("position", "")).isdecimal():
        return {"position": int(position), "text": _words(branch, int(position))}
    memory = state.memory(branch) or state.Memory()
    return {
        "goal": memory.goal,
        "plan": "\n".join(f"[x] {step}" if did else step for step, did in memory.plan),
        "notes": "\n".join(memory.notes),
    }


def _value(branch: Branch, key: str) -> str:
    at = restore.last_visible(Checkpoint, branch)
    values = restore.state_of(branch, at) if at is not None else {}
    return json.dumps(values[key], ensure_ascii=False, indent=2) if key in values else ""


def _words(branch: Branch, position: int) -> str:
    found = fill_texts(branch, list(Message.objects.visible_on(branch).filter(position=position)))
    return found[0].text if found else ""
