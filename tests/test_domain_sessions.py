"""A durable session as a value, and a value as the beginning of a durable session."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import pytest
from haystack.components.agents import Agent
from haystack.dataclasses import ChatMessage, FileContent, ImageContent, TextContent
from haystack.dataclasses import ToolCall as HaystackCall
from haystack.tools import create_tool_from_function

from agentstate import DurableAgent, ToolPolicy
from agentstate.domain import (
    AgentPhase,
    AgentState,
    Message,
    NotForChatApi,
    Role,
    ToolCall,
    WorkingMemory,
    decode_state,
    encode_state,
    history_to_messages,
    parts,
    truncate_history,
)
from agentstate.durable.memory import MEMORY_SCHEMA, memory_tools
from agentstate.journals import FileJournal, MemoryJournal, show
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


def test_a_failure_stays_that_of_its_own_call_where_a_model_uses_an_id_again() -> None:
    state = AgentState.from_user_input("hi", "anna").to_executing()
    state = state.record_observation("I look.", ToolCall("c1", "look", {}, "yes"))
    state = state.record_observation("I ask.", ToolCall("c1", "ask", {}, None, "nobody there"))
    journal = MemoryJournal.open(session_id="anna")
    write_state(journal, state)
    looked, asked = AgentState.of(journal).memory.tool_calls
    assert (looked.result, looked.error, asked.error) == ("yes", None, "nobody there")


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


@pytest.mark.slow
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
    with pytest.raises(
        TypeError, match="An int is not a durable session: give a journal, or an object that has one"
    ):
        AgentState.of(7)


# Images and files

PICTURE = ImageContent("iVBORw0KGgo=", mime_type="image/png", detail="low", validation=False)
PAPER = FileContent("JVBERi0=", mime_type="application/pdf", filename="claim.pdf", validation=False)


def looking() -> Agent:
    """Its tool returns a picture with a text."""

    def look(what: Annotated[str, "what"]) -> list[Any]:
        return [TextContent("a car"), PICTURE]

    return Agent(
        chat_generator=sample_agents.scripted([HaystackCall("look", {"what": "it"}, id="l1")], "Seen."),
        tools=[create_tool_from_function(look, outputs_to_string={"raw_result": True})],
    )


SENT = [
    ChatMessage.from_user(content_parts=["Look:", PICTURE, "and\nread", PAPER], name="Ann"),
    ChatMessage.from_user(content_parts=[PAPER]),
]


def without_meta(messages: Iterable[ChatMessage]) -> list[dict[str, Any]]:
    return [{**message.to_dict(), "meta": {}} for message in messages]


def test_images_and_files_are_carried_into_a_state_and_back_without_loss() -> None:
    durable = DurableAgent(looking(), MemoryJournal.open(session_id="anna"))
    durable.run(SENT)
    state = AgentState.of(durable)
    assert [message.content for message in state.history[:2]] == ["Look:\nand\nread", ""]
    copy = MemoryJournal.open(session_id="bob")
    write_state(copy, decode_state(encode_state(state)), memory=False)
    again = DurableAgent(looking(), copy)
    assert without_meta(again.history()) == without_meta(durable.history())
    assert again.history()[3].tool_call_results[0].result == [TextContent("a car"), PICTURE]

    waiting = MemoryJournal.open(session_id="carl")
    write_state(waiting, replace(state, history=state.history[:2]), memory=False)
    DurableAgent(looking(), waiting).resume()
    assert without_meta(DurableAgent(looking(), waiting).history()[:2]) == without_meta(SENT)


def test_a_text_that_was_changed_keeps_the_images_beside_it() -> None:
    durable = DurableAgent(sample_agents.plain_talk(), MemoryJournal.open(session_id="anna"))
    durable.run(SENT)
    state = AgentState.of(durable)
    redacted = replace(state.history[0], content="[hidden]")
    copy = MemoryJournal.open(session_id="bob")
    write_state(copy, replace(state, history=(redacted, *state.history[1:])), memory=False)
    first = DurableAgent(sample_agents.plain_talk(), copy).history()[0]
    assert first == ChatMessage.from_user(content_parts=["[hidden]", PICTURE, PAPER], name="Ann")
    assert "Look" not in str(copy.store.messages)


def test_a_chat_api_is_given_images_and_files_of_the_user_and_no_others() -> None:
    durable = DurableAgent(looking(), MemoryJournal.open(session_id="anna"))
    durable.run(SENT)
    history = AgentState.of(durable).history
    messages = history_to_messages(history[:2])
    assert messages == [message.to_openai_dict_format() for message in SENT]
    assert truncate_history(messages, 2200, keep_last_turns=0) == []
    assert truncate_history(messages, 3100, keep_last_turns=0) == messages
    with pytest.raises(
        NotForChatApi, match="A message of the role tool holds image, which a chat API accepts"
    ):
        history_to_messages(history)


def test_a_part_that_is_none_is_refused() -> None:
    wrong = Message(Role.USER, "hi", metadata={"parts": [{"audio": {}}]})
    state = replace(AgentState.from_user_input("hi", "anna"), history=(wrong,))
    with pytest.raises(
        ValueError, match="A part of a message has one of: characters, file, image, reasoning"
    ):
        write_state(MemoryJournal.open(session_id="anna"), state)


@pytest.mark.django_db
def test_a_session_of_the_desk_keeps_its_images_when_its_state_is_written_back() -> None:
    with driving.desk() as desk:
        desk.agent(looking)
        session = desk.run(desk.start(message="", messages=[message.to_dict() for message in SENT]))
        actions.send_message(actor=SYSTEM, session_id=session.pk, messages=[SENT[0].to_dict()])
        state = AgentState.of(session)
        answer = replace(state.history[-2], content="Seen, twice.")
        picture = replace(state.history[0], content="This one:\nand\nread")
        changed = replace(state, history=(*state.history[:-2], answer, state.history[-1], picture))
        actions.write_state(actor=SYSTEM, session_id=session.pk, state=changed, reason="more")
        back = AgentState.of(session)
        contents = [message.content for message in back.history[-3:]]
        assert contents == ["Seen, twice.", "Look:\nand\nread", "This one:\nand\nread"]
        assert [parts.kinds(message.metadata) for message in back.history[-3:]] == [
            [],
            ["image", "file"],
            ["image", "file"],
        ]
        assert back.history[3].metadata == state.history[3].metadata


def test_a_session_as_text_says_where_images_and_files_are() -> None:
    journal = MemoryJournal.open(session_id="anna")
    DurableAgent(sample_agents.plain_talk(), journal).run(SENT)
    assert show(journal.store).splitlines()[1:6] == [
        "  user        Look:",
        f"{'':14}[image]",
        f"{'':14}and",
        f"{'':14}read",
        f"{'':14}[file]",
    ]
