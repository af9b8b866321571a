"""What the stored working memory is: one rule for the tools that write it, the page that shows it and the repair.

The state key `WORKING_MEMORY_KEY` holds ``{"goal": str, "plan": [str], "completed": [str], "notes": [str]}``, where
``completed`` names steps of the plan. Needs no Haystack.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from agentstate.names import MEMORY_TOOLS

Json = Any


@dataclass(frozen=True, slots=True)
class WorkingMemory:
    goal: str = ""
    plan: tuple[str, ...] = ()
    completed: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @classmethod
    def from_stored(cls, value: Json) -> Self:
        """Read a stored value. What is missing, or is not what it should be, counts as empty."""
        if not isinstance(value, Mapping):
            return cls()
        return cls(
            goal=str(value.get("goal") or ""),
            plan=_texts(value.get("plan")),
            completed=_texts(value.get("completed")),
            notes=_texts(value.get("notes")),
        )

    def to_stored(self) -> dict[str, Json]:
        return {
            "goal": self.goal,
            "plan": list(self.plan),
            "completed": list(self.completed),
            "notes": list(self.notes),
        }

    @property
    def pending(self) -> tuple[str, ...]:
        """The steps that are not completed, in the plan's order."""
        return tuple(step for step in self.plan if step not in self.completed)

    def check(self) -> None:
        """:raises ValueError: for a completed step that the plan does not have; a sentence for people."""
        unplanned = [step for step in self.completed if step not in self.plan]
        if unplanned:
            raise ValueError(f"The plan has no step {unplanned[0]!r}, so it cannot be completed.")

    def with_plan(self, goal: str, steps: Iterable[str]) -> Self:
        """Another goal and plan. Steps that the new plan has too stay completed."""
        plan = tuple(steps)
        completed = tuple(step for step in self.completed if step in plan)
        return replace(self, goal=goal, plan=plan, completed=completed)

    def with_completed(self, step: str) -> Self:
        """The step is completed; nothing changes if it was already."""
        return self if step in self.completed else replace(self, completed=(*self.completed, step))

    def with_note(self, text: str) -> Self:
        return replace(self, notes=(*self.notes, text))


def keeps_working_memory(tools: Iterable[str]) -> bool:
    """Whether an agent with these tools keeps a working memory, even if it has not written to it yet."""
    return not set(MEMORY_TOOLS).isdisjoint(tools)


def _texts(value: Json) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,) if value else ()
    return tuple(str(item) for item in value) if isinstance(value, list | tuple) else ()
