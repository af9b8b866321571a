"""The working memory is read, changed and checked by one rule, wherever its stored value came from."""

from typing import Any

import pytest
from haystack.components.agents.state import State

from agentstate.durable.memory import MEMORY_SCHEMA, complete_step, make_plan, take_note
from agentstate.durable.working_memory import WorkingMemory, keeps_working_memory
from agentstate.names import MEMORY_TOOLS, WORKING_MEMORY_KEY


@pytest.mark.parametrize(
    "stored, expected",
    [
        (None, WorkingMemory()),
        ("text", WorkingMemory()),
        ({}, WorkingMemory()),
        ({"goal": None, "plan": None, "completed": 3, "notes": ""}, WorkingMemory()),
        ({"goal": 7, "plan": ["a", 2], "notes": "one"}, WorkingMemory("7", ("a", "2"), (), ("one",))),
    ],
)
def test_any_stored_value_can_be_read(stored: Any, expected: WorkingMemory) -> None:
    assert WorkingMemory.from_stored(stored) == expected


def test_what_is_written_is_read_back() -> None:
    memory = WorkingMemory("go", ("a", "b"), ("a",), ("n",))
    assert WorkingMemory.from_stored(memory.to_stored()) == memory
    assert memory.to_stored() == {"goal": "go", "plan": ["a", "b"], "completed": ["a"], "notes": ["n"]}


def test_only_steps_of_the_plan_can_be_completed() -> None:
    WorkingMemory(plan=("a",), completed=("a",)).check()
    with pytest.raises(ValueError, match=r"^The plan has no step 'b', so it cannot be completed\.$"):
        WorkingMemory(plan=("a",), completed=("a", "b")).check()


@pytest.mark.parametrize("name", MEMORY_TOOLS)
def test_an_agent_with_one_of_the_tools_keeps_a_memory(name: str) -> None:
    assert keeps_working_memory(["look_up", name])
    assert not keeps_working_memory(["look_up"])


def test_the_tools_write_the_stored_value_and_keep_keys_of_others() -> None:
    state = State(schema=MEMORY_SCHEMA, data={WORKING_MEMORY_KEY: {"mood": "good"}})
    assert make_plan.invoke(goal="go", steps=["a", "b"], state=state) == "Planned: 2 steps."
    assert complete_step.invoke(step="a", state=state) == "Completed. Still to do: b."
    assert complete_step.invoke(step="a", state=state) == "Completed. Still to do: b."
    assert complete_step.invoke(step="c", state=state) == "The plan has no step 'c'. Its steps are: a; b."
    assert take_note.invoke(text="n", state=state) == "Noted."
    assert state.get(WORKING_MEMORY_KEY) == {
        "mood": "good",
        "goal": "go",
        "plan": ["a", "b"],
        "completed": ["a"],
        "notes": ["n"],
    }
    make_plan.invoke(goal="stay", steps=["b", "a"], state=state)
    memory = WorkingMemory.from_stored(state.get(WORKING_MEMORY_KEY))
    assert (memory.goal, memory.completed, memory.pending) == ("stay", ("a",), ("b",))
