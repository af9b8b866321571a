"""Working memory: tools by which an agent keeps its goal, plan and notes in the State, where the desk shows them.

    Agent(..., tools=[lookup, *memory_tools()], state_schema={**MEMORY_SCHEMA})

`agentstate.domain.working_memory` says what the stored value is. The names, descriptions and parameters of the tools
are part of the definition of every agent that has them: changing one makes its open sessions wait for a person.
"""

from typing import Annotated, Any

from haystack.components.agents.state import State
from haystack.components.agents.state.state import replace_values
from haystack.tools import Tool, tool

from agentstate.domain import WorkingMemory
from agentstate.names import WORKING_MEMORY_KEY

MEMORY_SCHEMA: dict[str, dict[str, Any]] = {
    WORKING_MEMORY_KEY: {"type": dict[str, Any], "handler": replace_values}
}


def memory_tools() -> list[Tool]:
    """`make_plan`, `complete_step` and `take_note`. They change the State only, and count as idempotent."""
    return [make_plan, complete_step, take_note]


def _read(state: State) -> WorkingMemory:
    return WorkingMemory.from_stored(state.get(WORKING_MEMORY_KEY))


def _write(state: State, memory: WorkingMemory) -> None:
    """Keys that an agent's own code has put beside these are kept."""
    state.set(WORKING_MEMORY_KEY, {**(state.get(WORKING_MEMORY_KEY) or {}), **memory.to_stored()})


@tool
def make_plan(
    goal: Annotated[str, "what is to be reached, in one sentence"],
    steps: Annotated[list[str], "the steps towards it, in order"],
    state: State,
) -> str:
    """Set down the goal and the steps towards it; replaces an earlier plan."""
    _write(state, _read(state).replan(goal, steps))
    return f"Planned: {len(steps)} steps."


@tool
def complete_step(step: Annotated[str, "the step, word for word as in the plan"], state: State) -> str:
    """Mark a step of the plan as completed."""
    memory = _read(state)
    if step not in memory.plan_steps:
        return f"The plan has no step {step!r}. Its steps are: {'; '.join(memory.plan_steps) or 'none'}."
    if step in memory.pending_steps:
        memory = memory.complete_step(step)
        _write(state, memory)
    return f"Completed. Still to do: {'; '.join(memory.pending_steps) or 'nothing'}."


@tool
def take_note(text: Annotated[str, "what is worth remembering"], state: State) -> str:
    """Keep a note for later."""
    _write(state, _read(state).note(text))
    return "Noted."
