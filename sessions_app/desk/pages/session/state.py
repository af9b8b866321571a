"""The agent's state at a checkpoint: its keys, its counters, the available tools, and its working memory."""

import json
from dataclasses import dataclass, field
from typing import Any

from agentstate.domain.working_memory import WorkingMemory, keeps_working_memory
from agentstate.durable.state.tags import without_tags
from agentstate.names import PROMPT_PLACES, WORKING_MEMORY_KEY
from sessions_app.access.availability import shows
from sessions_app.access.masking import Mask
from sessions_app.desk.pages.session.context import SessionContext
from sessions_app.desk.pages.values import ReadableValue, readable
from sessions_app.history import restore
from sessions_app.models import Branch, Checkpoint


@dataclass(frozen=True, slots=True)
class Memory:
    """The working memory. ``plan`` is each step, and whether it is completed."""

    goal: str = ""
    plan: list[tuple[str, bool]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    keyed_notes: dict[str, str] = field(default_factory=dict)

    @property
    def parts(self) -> dict[str, Any]:
        """What a person edits, by the names of the fields; of the plan the steps alone."""
        return {"goal": self.goal, "plan": [step for step, _ in self.plan], "notes": self.notes}


@dataclass(frozen=True, slots=True)
class State:
    """``unnamed`` are the names of which a part is hidden: no link can name such a key.

    ``places`` say where each key is among the checkpoint's, for `revealed.find`.
    """

    checkpoint: Checkpoint | None = None
    values: dict[str, ReadableValue] = field(default_factory=dict)
    counters: list[tuple[str, str]] = field(default_factory=list)
    tools: tuple[str, ...] = ()
    unnamed: frozenset[str] = frozenset()
    places: dict[str, str] = field(default_factory=dict)

    @property
    def lacks_memory(self) -> bool:
        """Whether the agent could keep a working memory, and has none yet."""
        return WORKING_MEMORY_KEY not in self.values and keeps_working_memory(self.tools)


def read_state(context: SessionContext, checkpoint: Checkpoint | None = None) -> State:
    """The state at the checkpoint, or at the newest one.

    One query for the values, or two where tool calls hold some; for the newest checkpoint, and for the tools, one for
    each segment until they are found.
    """
    branch = context.branch
    if checkpoint is None:
        checkpoint = restore.last_visible(Checkpoint, branch)
        if checkpoint is None:
            return State()
    elif not shows(branch, checkpoint):
        branch = checkpoint.branch
    stored = restore.state_of(branch, checkpoint)
    values = context.mask.json(stored)
    shown = context.mask.row(checkpoint)
    return State(
        checkpoint=shown,
        values={key: readable(value) for key, value in sorted(values.items())},
        counters=[
            row
            for key, value in shown.counters.items()
            if key != PROMPT_PLACES
            for row in _counter_rows(key, value)
        ],
        tools=restore.tools_of(branch, checkpoint),
        unnamed=frozenset(values.keys() - stored.keys()),
        places=_places(checkpoint, list(stored), list(values)),
    )


def _places(checkpoint: Checkpoint, keys: list[str], shown: list[str]) -> dict[str, str]:
    """By the names that are shown. Where two names became the same, none says which value is meant."""
    order = {key: place for place, key in enumerate(sorted(keys))}
    pairs = zip(keys, shown, strict=True) if len(keys) == len(shown) else ()
    return {name: f"{checkpoint.pk}-{order[key]}" for key, name in pairs}


def memory(branch: Branch, checkpoint: Checkpoint | None = None, *, mask: Mask) -> Memory | None:
    """The working memory at the branch's newest checkpoint; None where the agent keeps none.

    One query, or two where a tool call holds it. Without ``checkpoint``, which is the newest one, also those that find
    that.
    """
    checkpoint = checkpoint or restore.last_visible(Checkpoint, branch)
    if checkpoint is None:
        return None
    value = restore.state_of(branch, checkpoint, only=WORKING_MEMORY_KEY).get(WORKING_MEMORY_KEY)
    value = without_tags(mask.json(value))
    if not isinstance(value, dict):
        return None
    stored = WorkingMemory.from_stored(value)
    return Memory(
        goal=stored.current_goal,
        plan=[(step, step in stored.completed_steps) for step in stored.plan_steps],
        notes=list(stored.notes),
        keyed_notes=dict(stored.keyed_notes),
    )


def _counter_rows(key: str, value: Any) -> list[tuple[str, str]]:
    """A number is one row; numbers by name are a row each, below the name of them all. What is zero has none."""
    name = key.replace("_", " ").capitalize()
    if not value:
        return []
    if not isinstance(value, dict):
        return [(name, _count_text(value))]
    rows = [(f"· {part}", _count_text(number)) for part, number in value.items() if number]
    return [(name, ""), *rows] if rows else []


def _count_text(value: Any) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else str(value)
