"""A durable session as a value, and a value as the beginning of a durable session."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from haystack.components.agents import Agent
from haystack.dataclasses import ToolCall as HaystackCall

from agentstate import DurableAgent, ToolPolicy
from agentstate.domain import AgentPhase, AgentState, ToolCall, WorkingMemory, history_to_messages
from agentstate.durable.memory import MEMORY_SCHEMA, memory_tools
from agentstate.journals import FileJournal, MemoryJournal
from agentstate.journals.domain_state import write_state
from sessions_app import actions
from sessions_app.access.errors import Invalid
from tests import builders, driving, sample_agents
from tests.builders import SYSTEM
from tests.sample_agents import effects

pytestmark = pytest.mark.usefixtures("no_effects")


def planning() -> Agent:
    """Keeps a working memory."""
    plan = HaystackCall("make_plan", {"goal": "go", "steps": ["a", "b"]}, id="p1")
    note = HaystackCall("take_note", {"text": "n"}, id="p2")
    return Agent(
        chat_generator=sample_agents.scripted([plan, note], "Planned."),
        tools=memory_tools(),
        state_schema={**MEMORY_SCHEMA},
    )


def test_a_session_that_has_ended_is_a_state_that_is_done(tmp_path: Path) -> None:
    durable = DurableAgent(planning(), tmp_path / "anna.jsonl")
    durable.run("Plan it.")
    for session in (durable, durable.journal()):
        state = AgentState.of(session)
        assert (state.session_id, state.phase, state.iteration) == ("anna", AgentPhase.DONE, 2)
        assert (state.final_answer, state.error_message) == ("Planned.", None)
        memory = state.memory
        assert (memory.current_goal, memory.plan_steps, memory.notes) == ("go", ("a", "b"), ("n",))
        assert [(call.call_id, call.tool_name, call.succeeded) for call in memory.tool_calls] == [
            ("p1", "make_plan", True),
            ("p2", "take_note", True),
        ]
    assert [message["role"] for message in history_to_messages(state)] == [
        "user",
        "assistant",
        "tool",
        "tool",
        "assistant",
    ]


def test_a_message_that_was_not_read_is_part_of_the_history(tmp_path: Path) -> None:
    with FileJournal.open(tmp_path / "anna.jsonl", say="hi") as journal:
        assert [message.content for message in AgentState.of(journal, "b").history] == ["hi"]
        assert AgentState.of(journal, "b").session_id == "b"


def test_a_tool_that_failed_is_a_call_with_its_error() -> None:
    def fails() -> str:
        raise ValueError("no such order")

    durable = DurableAgent(sample_agents.one_tool(fails), MemoryJournal.open(session_id="anna"))
    durable.run("hi")
    [call] = AgentState.of(durable).memory.tool_calls
    assert "no such order" in (call.error or "")


def test_a_fresh_state_is_the_turn_that_comes_next(tmp_path: Path) -> None:
    state = AgentState.from_user_input("hi", "anna")
    journal = MemoryJournal.open(session_id="anna")
    write_state(journal, state, memory=False)
    assert DurableAgent(sample_agents.long_run(2), journal).resume().text == "Long done."
    assert [
        body["content"][0]["text"] for body in journal.store.messages.values() if body["role"] == "user"
    ] == ["hi"]


def test_a_state_within_a_turn_is_continued_and_one_that_is_done_takes_the_next_message() -> None:
    call = ToolCall("q0", "fast", {"q": "q0"}, "fast:q0")
    within = AgentState.from_user_input("hi", "anna").to_executing().record_observation("step 0", call)
    journal = MemoryJournal.open(session_id="anna")
    write_state(journal, within.to_reflecting(), memory=False)
    durable = DurableAgent(sample_agents.long_run(2), journal, policies={"fast": ToolPolicy(idempotent=True)})
    assert durable.resume().text == "Long done."
    assert [effect for effect in effects if effect.startswith("fast")] == ["fast(q1)"]

    done = MemoryJournal.open(session_id="anna")
    write_state(done, within.to_reflecting().to_done("Over."), memory=False)
    assert DurableAgent(sample_agents.plain_talk(), done).run("and?").finished


def test_the_way_there_and_back_keeps_conversation_memory_and_phase() -> None:
    failed = ToolCall("c1", "look", {"n": [1]}, None, "nobody there")
    found = ToolCall("c2", "look", {"n": [2]}, "yes")
    state = (
        AgentState.from_user_input("hi", "anna", system_prompt="Be brief.")
        .to_executing()
        .record_observation("I look.", failed, found)
        .to_reflecting()
        .to_done("It is.")
    )
    memory = WorkingMemory("go", ("a", "b"), ("a",), ("n",), state.memory.tool_calls)
    state = state.remember(memory)
    journal = MemoryJournal.open(session_id="anna")
    write_state(journal, state)
    back = AgentState.of(journal)
    assert history_to_messages(back) == history_to_messages(state)
    assert (back.phase, back.final_answer, back.session_id) == ("done", "It is.", "anna")
    shown: Any = [(call.call_id, call.arguments, call.error) for call in back.memory.tool_calls]
    assert shown == [(call.call_id, call.arguments, call.error) for call in state.memory.tool_calls]
    assert back.memory.notes == ("n",)


def test_a_session_that_has_begun_is_not_overwritten() -> None:
    journal = MemoryJournal.open(say="hi", session_id="anna")
    with pytest.raises(ValueError, match="The session 'anna' has begun already"):
        write_state(journal, AgentState.from_user_input("hi", "anna"))


@pytest.mark.django_db
def test_a_session_of_the_desk_is_read_without_a_claim() -> None:
    with driving.desk() as desk:
        desk.agent(planning)
        session = desk.run(desk.start("Plan it."))
        before = desk.fresh(session)
        state = AgentState.of(session)
        assert (state.session_id, state.phase, state.final_answer) == (str(session.pk), "done", "Planned.")
        assert (state.memory.current_goal, state.memory.notes) == ("go", ("n",))
        assert history_to_messages(state)[0] == {"role": "user", "content": "Plan it."}
        after = desk.fresh(session)
        assert (after.epoch, after.position) == (before.epoch, before.position)
        desk.say(session, "And now?")
        assert AgentState.of(session).history[-1].content == "And now?"


@pytest.mark.django_db
def test_a_failed_session_of_the_desk_has_its_error() -> None:
    session = builders.failed()
    state = AgentState.of(session)
    assert (state.phase, bool(state.error_message)) == ("error", True)


@pytest.mark.django_db
def test_a_state_is_written_back_into_a_session_of_the_desk_as_a_repair() -> None:
    with driving.desk() as desk:
        desk.agent(planning)
        session = desk.run(desk.start("Plan it."))
        state = AgentState.of(session)
        changed = state.remember(state.memory.note("late", key="order")).to_planning("And now?")
        written = actions.write_state(actor=SYSTEM, session_id=session.pk, state=changed, reason="Put right")
        back = AgentState.of(written)
        assert back.memory.keyed_notes == {"order": "late"}
        assert history_to_messages(back) == history_to_messages(changed)
        event = desk.last_event(session)
        assert (event.kind, event.reason, event.description) == (
            "repaired",
            "Put right",
            "wrote its conversation and working memory",
        )
        assert desk.run(desk.resume(session)).final_answer == "Planned."
        assert desk.texts(session)[0] == ("user", "Plan it.")


@pytest.mark.django_db
def test_another_conversation_takes_the_place_of_the_one_that_the_model_saw() -> None:
    with driving.desk() as desk:
        desk.agent(sample_agents.refunds)
        session = desk.run(actions.set_breakpoint(actor=SYSTEM, session_id=desk.start("hi").pk))
        session = desk.run(desk.resume(session))
        state = AgentState.of(session)
        first = replace(state.history[0], content="good day")
        changed = replace(state, history=(first, *state.history[1:]))
        actions.write_state(actor=SYSTEM, session_id=session.pk, state=changed, reason="polite")
        assert desk.run(desk.resume(session)).status == "idle"
        assert AgentState.of(session).history[0].content == "good day"
        assert [call.status for call in desk.calls(session)] == ["done", "done", "done"]
        assert effects.count("refund(A1,100)") == 1


@pytest.mark.django_db
def test_a_state_that_changes_nothing_or_that_the_agent_cannot_keep_is_refused() -> None:
    with driving.desk() as desk:
        desk.agent(sample_agents.refunds)
        session = desk.run(desk.start("hi"))
        state = AgentState.of(session)
        for unwritable, why in (
            (state, "Nothing was changed"),
            (state.remember(state.memory.note("n")), "This agent keeps no working memory"),
        ):
            with pytest.raises(Invalid, match=why):
                actions.write_state(actor=SYSTEM, session_id=session.pk, state=unwritable, reason="r")


def test_what_is_no_durable_session_is_refused() -> None:
    with pytest.raises(TypeError, match="A int is no durable session: give a journal, or what has one"):
        AgentState.of(7)
