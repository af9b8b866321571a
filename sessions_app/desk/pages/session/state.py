"""The agent's state at a checkpoint: its keys, its counters, the tools at hand."""

import json
from dataclasses import dataclass, field
from typing import Any

from sessions_app.access.masking import Mask
from sessions_app.desk.pages.values import Shown, show, untagged
from sessions_app.history import restore
from sessions_app.models import Branch, Checkpoint, StateValue

MEMORY_KEY = "working_memory"


@dataclass(frozen=True, slots=True)
class Memory:
    """The working memory, where the agent keeps one: ``plan`` is each step, and whether it is completed."""

    goal: str = ""
    plan: list[tuple[str, bool]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class State:
    checkpoint: Checkpoint | None = None
    values: dict[str, Shown] = field(default_factory=dict)
    counters: list[tuple[str, str]] = field(default_factory=list)
    tools: tuple[str, ...] = ()

    @property
    def may_remember(self) -> bool:
        """Whether the agent could keep a working memory, and has none yet."""
        return MEMORY_KEY not in self.values and "make_plan" in self.tools


def state(branch: Branch, checkpoint: Checkpoint | None = None, *, mask: Mask) -> State:
    """The state at the checkpoint, or at the newest one."""
    at = checkpoint or restore.last_visible(Checkpoint, branch)
    if at is None:
        return State()
    values = restore.state_of(branch, at)
    return State(
        checkpoint=at,
        values={key: show(value) for key, value in sorted(mask.json(values).items())},
        counters=[
            (key.replace("_", " "), _plain(value))
            for key, value in at.counters.items()
            if value not in (None, {}, [])
        ],
        tools=restore.tools_of(branch, at),
    )


def memory(branch: Branch, at: Checkpoint | None = None, *, mask: Mask) -> Memory | None:
    """The working memory at the newest checkpoint, which is ``at``. Two queries, however long the history."""
    at = at or restore.last_visible(Checkpoint, branch)
    if at is None or MEMORY_KEY not in at.keys:
        return None
    row = StateValue.objects.visible_on(branch).filter(key=MEMORY_KEY, position=at.keys[MEMORY_KEY]).first()
    value = untagged(mask.json(row.value)) if row is not None else None
    if not isinstance(value, dict):
        return None
    completed = value.get("completed") or []
    return Memory(
        goal=str(value.get("goal") or ""),
        plan=[(str(step), step in completed) for step in value.get("plan") or []],
        notes=[str(note) for note in value.get("notes") or []],
    )


def _plain(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else str(value)
