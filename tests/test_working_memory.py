"""The working memory is read, changed and checked by one rule, wherever its stored value came from."""

from typing import Any

import pytest
from haystack.components.agents.state import State

from agentstate.domain.working_memory import WorkingMemory, keeps_working_memory
from agentstate.durable.memory import MEMORY_SCHEMA, complete_step, make_plan, take_note
from agentstate.durable.state.tags import with_order
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


def test_a_memory_is_read_whose_keys_have_an_order() -> None:
    """As the State keeps it, with the keys of an agent's own code."""
    stored = with_order({"mood": "calm", "goal": "go", "notes": {"when": "now", "at": "8"}})
    assert stored["$type"] == "ordered"
    memory = WorkingMemory.from_stored(stored)
    assert memory.current_goal == "go"
    assert list(memory.keyed_notes.items()) == [("when", "now"), ("at", "8")]
    assert WorkingMemory.from_stored({"$type": "ordered", "keys": 5}) == WorkingMemory()
    assert with_order(WorkingMemory("go").to_stored()) == WorkingMemory("go").to_stored()


def test_what_is_written_is_read_back() -> None:
    memory = WorkingMemory("go", ("a", "b"), ("a",), ("n",))
    assert WorkingMemory.from_stored(memory.to_stored()) == memory
    assert memory.to_stored() == {"goal": "go", "plan": ["a", "b"], "completed": ["a"], "notes": ["n"]}


def test_a_note_with_a_key_takes_the_place_of_the_one_before() -> None:
    memory = WorkingMemory().note("blue", key="colour").note("red", key="colour")
    assert memory.keyed_notes == {"colour": "red"}
    assert memory.to_stored()["notes"] == {"colour": "red"}
    both = memory.note("n")
    assert both.to_stored()["notes"] == ["n", {"key": "colour", "text": "red"}]
    assert [WorkingMemory.from_stored(value.to_stored()) for value in (memory, both)] == [memory, both]


def test_notes_that_an_agents_own_code_stored_as_a_mapping_are_read_with_their_keys() -> None:
    memory = WorkingMemory.from_stored({"notes": {"colour": "red", "size": 7}})
    assert (memory.notes, memory.keyed_notes) == ((), {"colour": "red", "size": "7"})


def test_only_steps_of_the_plan_can_be_completed() -> None:
    WorkingMemory(plan_steps=("a",), completed_steps=("a",)).check()
    with pytest.raises(ValueError, match=r"^The plan has no step 'b', so it cannot be completed\.$"):
        WorkingMemory(plan_steps=("a",), completed_steps=("a", "b")).check()


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
    assert (memory.current_goal, memory.completed_steps, memory.pending_steps) == ("stay", ("a",), ("b",))
