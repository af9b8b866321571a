"""Working memory: an agent's goal, plan and notes, as a value and as it is stored in the State of a durable session.

This is the only definition: the tools that write it, the desk's page and repair, and the value model use it. It is
stored under `WORKING_MEMORY_KEY` as ``{"goal": str, "plan": [str], "notes": notes, "completed": [str]}``. The notes are
a list of texts; where all of them have keys, a mapping; where some have, a list in which these are
``{"key": str, "text": str}``.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from agentstate.domain.frozen import FrozenDict, require, set_fields, tuple_of
from agentstate.domain.messages import ToolCall
from agentstate.names import MEMORY_TOOLS, TYPE_TAG

Json = Any


@dataclass(frozen=True, slots=True)
class WorkingMemory:
    """The agent's goal, plan and notes, and every tool call that it made.

    :param keyed_notes: Notes that have a key, by which a later note takes the place of an earlier one.
    :param tool_calls: Of a value that was read or made; they are not stored with the memory.
    """

    current_goal: str = ""
    plan_steps: tuple[str, ...] = ()
    completed_steps: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    tool_calls: tuple[ToolCall, ...] = ()
    keyed_notes: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require(str, current_goal=self.current_goal)
        for name in ("plan_steps", "completed_steps", "notes"):
            set_fields(self, **{name: tuple_of(str, getattr(self, name), name)})
        set_fields(self, tool_calls=tuple_of(ToolCall, self.tool_calls, "tool_calls"))
        require(Mapping, keyed_notes=self.keyed_notes)
        for key, text in self.keyed_notes.items():
            require(str, **{f"keyed_notes[{key!r}]": text})
        set_fields(self, keyed_notes=FrozenDict(self.keyed_notes, "keyed_notes"))

    @classmethod
    def from_stored(cls, value: Json, tool_calls: Iterable[ToolCall] = ()) -> Self:
        """Read a stored value. What is missing, or is not what it should be, counts as empty."""
        value = _untagged(value)
        if not isinstance(value, Mapping):
            return cls(tool_calls=tuple(tool_calls))
        notes, keyed_notes = _notes(_untagged(value.get("notes")))
        return cls(
            current_goal=str(value.get("goal") or ""),
            plan_steps=_texts(value.get("plan")),
            completed_steps=_texts(value.get("completed")),
            notes=notes,
            tool_calls=tuple(tool_calls),
            keyed_notes=keyed_notes,
        )

    def to_stored(self) -> dict[str, Json]:
        notes: Json = list(self.notes)
        if self.keyed_notes and not notes:
            notes = dict(self.keyed_notes)
        elif self.keyed_notes:
            notes += [{"key": key, "text": text} for key, text in self.keyed_notes.items()]
        # In the order of a database, which needs no tag to be kept.
        return {
            "goal": self.current_goal,
            "plan": list(self.plan_steps),
            "notes": notes,
            "completed": list(self.completed_steps),
        }

    @property
    def pending_steps(self) -> tuple[str, ...]:
        """The steps not completed yet, in the plan's order; a step that is planned twice is to be done twice."""
        completed = Counter(self.completed_steps)
        pending = []
        for step in self.plan_steps:
            if completed[step]:
                completed[step] -= 1
            else:
                pending.append(step)
        return tuple(pending)

    def check(self) -> None:
        """:raises ValueError: for a completed step that the plan does not have; a sentence for people."""
        unplanned = [step for step in self.completed_steps if step not in self.plan_steps]
        if unplanned:
            raise ValueError(f"The plan has no step {unplanned[0]!r}, so it cannot be completed.")

    def pursue(self, goal: str) -> Self:
        """A new goal, with no plan yet. Notes and tool calls stay."""
        return replace(self, current_goal=goal, plan_steps=(), completed_steps=())

    def plan(self, steps: Iterable[str]) -> Self:
        """A new plan for the same goal; completed steps stay completed."""
        return replace(self, plan_steps=tuple_of(str, steps, "steps"))

    def replan(self, goal: str, steps: Iterable[str]) -> Self:
        """Another goal and plan. Steps that the new plan has too stay completed."""
        plan = tuple_of(str, steps, "steps")
        completed = tuple(step for step in self.completed_steps if step in plan)
        return replace(self, current_goal=goal, plan_steps=plan, completed_steps=completed)

    def complete_step(self, step: str) -> Self:
        """:raises ValueError: for a step that the plan does not have, or that is completed."""
        if step not in self.pending_steps:
            pending = ", ".join(map(repr, self.pending_steps)) or "none"
            raise ValueError(f"{step!r} is not a pending step of the plan. Pending: {pending}.")
        return replace(self, completed_steps=(*self.completed_steps, step))

    def note(self, text: str, key: str = "") -> Self:
        """Another note; one with a key takes the place of that with the same key."""
        if key:
            return replace(self, keyed_notes={**self.keyed_notes, key: text})
        return replace(self, notes=(*self.notes, text))

    def record_tool_call(self, call: ToolCall) -> Self:
        return replace(self, tool_calls=(*self.tool_calls, call))


def keeps_working_memory(tools: Iterable[str]) -> bool:
    """Whether an agent with these tools keeps a working memory, even if it has not written to it yet."""
    return not set(MEMORY_TOOLS).isdisjoint(tools)


def _untagged(value: Json) -> Json:
    """An object without the tag with which a stored one keeps the order of its keys (`agentstate.durable.state`)."""
    if not isinstance(value, Mapping) or value.get(TYPE_TAG) != "ordered":
        return value
    keys, values = value.get("keys"), value.get("value")
    if not isinstance(keys, list) or not isinstance(values, Mapping):
        return {}
    return {key: values[key] for key in keys if isinstance(key, str) and key in values}


def _notes(value: Json) -> tuple[tuple[str, ...], dict[str, str]]:
    """The notes without a key, and those with one."""
    if isinstance(value, Mapping):
        return (), {str(key): str(text) for key, text in value.items()}
    items = value if isinstance(value, list | tuple) else ()
    keyed = [item for item in items if _has_key(item)]
    plain = [item for item in items if not _has_key(item)]
    texts = _texts(plain if items else value)
    return texts, {str(item["key"]): str(item["text"]) for item in keyed}


def _has_key(item: Json) -> bool:
    return isinstance(item, Mapping) and item.keys() == {"key", "text"}


def _texts(value: Json) -> tuple[str, ...]:
    """A stored list of texts; what is not one, which an agent's own code may have stored, as far as it can be read."""
    if isinstance(value, str):
        return (value,) if value else ()
    return tuple(str(item) for item in value) if isinstance(value, list | tuple) else ()
