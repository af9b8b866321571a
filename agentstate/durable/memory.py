"""Working memory: tools by which an agent keeps its goal, plan and notes in the State, where the desk shows them.

    Agent(..., tools=[lookup, *memory_tools()], state_schema={**MEMORY_SCHEMA})

The state key `working_memory` holds ``{"goal": str, "plan": [str], "completed": [str], "notes": [str]}``.
"""

from typing import Annotated, Any

from haystack.components.agents.state import State
from haystack.components.agents.state.state import replace_values
from haystack.tools import Tool, tool

KEY = "working_memory"
MEMORY_SCHEMA: dict[str, dict[str, Any]] = {KEY: {"type": dict[str, Any], "handler": replace_values}}
EMPTY: dict[str, Any] = {"goal": "", "plan": [], "completed": [], "notes": []}


def memory_tools() -> list[Tool]:
    """`make_plan`, `complete_step` and `take_note`. They change nothing but the State: declare them idempotent."""
    return [make_plan, complete_step, take_note]


def _memory(state: State) -> dict[str, Any]:
    return {**EMPTY, **(state.get(KEY) or {})}


@tool
def make_plan(
    goal: Annotated[str, "what is to be reached, in one sentence"],
    steps: Annotated[list[str], "the steps towards it, in order"],
    state: State,
) -> str:
    """Set down the goal and the steps towards it; replaces an earlier plan."""
    memory = _memory(state)
    kept = [step for step in memory["completed"] if step in steps]
    state.set(KEY, {**memory, "goal": goal, "plan": list(steps), "completed": kept})
    return f"Planned: {len(steps)} steps."


@tool
def complete_step(step: Annotated[str, "the step, word for word as in the plan"], state: State) -> str:
    """Mark a step of the plan as completed."""
    memory = _memory(state)
    if step not in memory["plan"]:
        return f"The plan has no step {step!r}. Its steps are: {'; '.join(memory['plan']) or 'none'}."
    if step not in memory["completed"]:
        state.set(KEY, {**memory, "completed": [*memory["completed"], step]})
    pending = [other for other in memory["plan"] if other not in memory["completed"] and other != step]
    return f"Completed. Still to do: {'; '.join(pending) or 'nothing'}."


@tool
def take_note(text: Annotated[str, "what is worth remembering"], state: State) -> str:
    """Keep a note for later."""
    memory = _memory(state)
    state.set(KEY, {**memory, "notes": [*memory["notes"], text]})
    return "Noted."
