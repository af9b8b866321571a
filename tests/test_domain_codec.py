"""A state written is the state read, whatever it holds; what cannot be read in full is refused."""

import json
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentstate.domain import (
    AgentPhase,
    AgentState,
    Message,
    Role,
    ToolCall,
    UnreadableState,
    WorkingMemory,
    codec,
    decode_state,
    encode_state,
)

NOW = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
LATER = datetime(2026, 2, 3, 4, 5, 6, 7, tzinfo=UTC)

anything = st.text(st.characters(codec=None))
numbers = st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | numbers | anything,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(anything, inner, max_size=4),
    max_leaves=12,
)
mappings = st.dictionaries(anything, values, max_size=4)
moments = st.datetimes(
    min_value=datetime.fromisoformat("0001-01-03"),
    max_value=datetime.fromisoformat("9999-12-29"),
    timezones=st.timezones(),
)
session_ids = st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,30}[A-Za-z0-9_-])?", fullmatch=True)
calls = st.builds(
    ToolCall,
    call_id=anything,
    tool_name=anything,
    arguments=mappings,
    result=values,
    error=st.none() | anything,
    duration_ms=st.integers(0, 10**9) | st.floats(0, 1e9),
    timestamp=moments,
)
messages = st.builds(Message, st.sampled_from(Role), anything, moments, mappings)
memories = st.builds(
    WorkingMemory,
    anything,
    st.lists(anything, max_size=3),
    st.lists(anything, max_size=3),
    st.lists(anything, max_size=3),
    st.lists(calls, max_size=3),
)
states = st.builds(
    AgentState,
    session_id=session_ids,
    phase=st.sampled_from(AgentPhase),
    history=st.lists(messages, max_size=4),
    memory=memories,
    iteration=st.integers(0, 10**6),
    final_answer=st.none() | anything,
    error_message=st.none() | anything,
    created_at=moments,
    updated_at=moments,
)


def full() -> AgentState:
    call = ToolCall("c1", "look", {"n": [1, {"deep": None}]}, [True, 1.5, "ü"], None, 12.25, NOW)
    failed = ToolCall("c2", "ask", {}, None, "nobody there", 3, LATER)
    memory = WorkingMemory("goal", ("a", "b"), ("a",), ("note",), (call, failed))
    history = (Message(Role.USER, "hello", NOW, {"channel": "mail"}), Message(Role.ASSISTANT, "hi", LATER))
    return AgentState("s-1", AgentPhase.ERROR, history, memory, 7, "partly", "broken", NOW, LATER)


def document(**changes: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(encode_state(full()))
    return found | changes


def with_state(**changes: Any) -> dict[str, Any]:
    found = document()
    found["state"] |= changes
    return found


@pytest.mark.slow
@given(states)
def test_any_state_comes_back_equal_and_frozen(state: AgentState) -> None:
    text = encode_state(state)
    back = decode_state(text)
    assert back == state
    assert repr(back) == repr(state), "also where 1, 1.0 and True would be equal"
    assert encode_state(back) == text
    assert decode_state(text.encode("utf-8", "surrogatepass")) == state
    hash(back)


def test_tool_calls_and_both_timestamps_come_back() -> None:
    back = decode_state(encode_state(full()))
    assert back.memory.tool_calls == full().memory.tool_calls
    assert (back.created_at, back.updated_at) == (NOW, LATER)
    assert [message.timestamp for message in back.history] == [NOW, LATER]
    assert [call.timestamp for call in back.memory.tool_calls] == [NOW, LATER]


@pytest.mark.parametrize("text", ["\x00", "\ud800", "\ud83d\ude00", "\U0001f600", "\u2028\r\n", '\\"'])
def test_odd_text_comes_back_as_it_was(text: str) -> None:
    state = AgentState(memory=WorkingMemory(text, notes=(text,)))
    assert decode_state(encode_state(state).encode("utf-8", "surrogatepass")).memory == state.memory


def test_the_example_leaves_no_field_at_its_default() -> None:
    blank = AgentState("blank")
    assert [f.name for f in fields(blank) if getattr(blank, f.name) == getattr(full(), f.name)] == []


def test_the_written_shape_of_version_1_is_still_read() -> None:
    text = """{"format": "agentstate", "version": 1, "state": {"session_id": "s-1", "phase": "done",
    "history": [{"role": "user", "content": "hello", "timestamp": "2026-01-02T03:04:05.678901+00:00", "metadata": {}}],
    "memory": {"current_goal": "hello", "plan_steps": ["a"], "completed_steps": [], "notes": ["n"], "tool_calls": [
    {"call_id": "c1", "tool_name": "look", "arguments": {"n": 1}, "result": [2], "error": null, "duration_ms": 1.5,
    "timestamp": "2026-01-02T03:04:05.678901+00:00"}]}, "iteration": 3, "final_answer": "hi", "error_message": null,
    "created_at": "2026-01-02T03:04:05.678901+00:00", "updated_at": "2026-02-03T04:05:06.000007+00:00"}}"""
    call = ToolCall("c1", "look", {"n": 1}, [2], None, 1.5, NOW)
    memory = WorkingMemory("hello", ("a",), (), ("n",), (call,))
    history = (Message(Role.USER, "hello", NOW),)
    assert decode_state(text) == AgentState(
        "s-1", AgentPhase.DONE, history, memory, 3, "hi", None, NOW, LATER
    )


def test_older_versions_are_migrated_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    def rename(state: dict[str, Any]) -> dict[str, Any]:
        return {"iteration": state.pop("steps"), **state}

    def move(state: dict[str, Any]) -> dict[str, Any]:
        return {**state, "session_id": f"moved-{state['session_id']}"}

    monkeypatch.setattr(codec, "VERSION", 3)
    monkeypatch.setattr(codec, "MIGRATIONS", {1: rename, 2: move})
    oldest = document(version=1)
    oldest["state"]["steps"] = oldest["state"].pop("iteration")
    assert decode_state(json.dumps(oldest)).session_id == "moved-s-1"
    assert decode_state(json.dumps(oldest)).iteration == 7
    assert decode_state(json.dumps(document(version=2))).session_id == "moved-s-1"
    assert decode_state(json.dumps(document(version=3))) == full()
    assert json.loads(encode_state(full()))["version"] == 3


def test_a_migration_that_meets_damage_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "VERSION", 2)
    monkeypatch.setattr(codec, "MIGRATIONS", {1: lambda state: {"iteration": state["steps"]}})
    with pytest.raises(UnreadableState, match="damaged"):
        decode_state(json.dumps(document(version=1)))


def test_every_older_version_has_its_migration() -> None:
    assert set(codec.MIGRATIONS) == set(range(1, codec.VERSION))


def test_a_newer_version_is_refused_with_advice() -> None:
    with pytest.raises(UnreadableState, match=r"has version 99, newer than 2.* Update AgentState"):
        decode_state(json.dumps(document(version=99)))


@pytest.mark.parametrize("version", [None, 0, -1, "1", 1.0, True, [1]])
def test_an_invalid_version_is_refused(version: Any) -> None:
    with pytest.raises(UnreadableState, match="is not a version"):
        decode_state(json.dumps(document(version=version)))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "hello",
        "\x00",
        b"\xff\xfe",
        '{"a": NaN}',
        pytest.param("[" * 100_000, id="deep"),
        pytest.param("9" * 5000, id="long number"),
    ],
)
def test_what_is_not_json_is_refused(text: str | bytes) -> None:
    with pytest.raises(UnreadableState, match="not JSON"):
        decode_state(text)


@pytest.mark.parametrize("found", [None, [], 7, "text", {}, {"format": "other", "version": 1, "state": {}}])
def test_json_that_is_something_else_is_refused(found: Any) -> None:
    with pytest.raises(UnreadableState, match="not an agent's state"):
        decode_state(json.dumps(found))


@pytest.mark.parametrize(
    "found,text",
    [
        (document(state=[]), "state is a list, not an object"),
        (document(state={}), "state does not have the fields of version 2: created_at, error_message"),
        (with_state(colour="red"), "state does not have the fields of version 2: colour"),
        (with_state(phase="asleep"), "'asleep' is not a valid AgentPhase"),
        (with_state(session_id="../x"), "is not a session id"),
        (with_state(iteration=-1), "iteration is -1"),
        (with_state(iteration="7"), "iteration is a str, not an int"),
        (with_state(final_answer=7), "final_answer is an int"),
        (with_state(created_at="2026-01-02T03:04:05"), "has no time zone"),
        (with_state(created_at="yesterday"), "Invalid isoformat string: 'yesterday'"),
        (with_state(created_at=None), "must be str"),
        (with_state(created_at="0001-01-01T00:00:00+10:00"), "damaged"),
        (with_state(history={}), "history is a dict, not a list"),
        (with_state(history=[7]), r"history\[0\] is an int, not an object"),
        (with_state(history=[{"role": "user"}]), r"history\[0\] does not have the fields"),
        (with_state(memory=None), "memory is None, not an object"),
        (with_state(memory=document()["state"]["memory"] | {"notes": "text"}), "notes is a str, not a list"),
        (
            with_state(memory=document()["state"]["memory"] | {"tool_calls": [7]}),
            r"memory.tool_calls\[0\] is an int",
        ),
    ],
)
def test_a_damaged_state_is_refused_with_its_place(found: dict[str, Any], text: str) -> None:
    with pytest.raises(UnreadableState, match=text):
        decode_state(json.dumps(found))


@pytest.mark.slow
@given(st.data())
def test_any_damage_is_an_unreadable_state_or_none_at_all(data: st.DataObject) -> None:
    text = encode_state(full())
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(len(text), start + 20)))
    try:
        decode_state(text[:start] + data.draw(st.text(max_size=5)) + text[end:])
    except UnreadableState:
        pass
