"""A state is a value: it never changes, and shares nothing that could change."""

import copy
import pickle
from collections.abc import Callable, Iterator
from dataclasses import FrozenInstanceError, fields, is_dataclass, replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from agentstate.domain import (
    AgentPhase,
    AgentState,
    FrozenDict,
    Message,
    Role,
    ToolCall,
    WorkingMemory,
    check_session_id,
    freeze,
    thaw,
)

# The same classes for callers that no type checker has seen.
LooseCall: Any = ToolCall
LooseMessage: Any = Message
LooseMemory: Any = WorkingMemory
LooseState: Any = AgentState

START = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
CALL = ToolCall(
    "c1", "look_up_policy", {"number": "P-7", "parts": ["roof"]}, {"status": "active"}, None, 12.5, START
)
FAILED = ToolCall("c2", "look_up_claim", {"number": "CLM-1"}, None, "no such claim", 3, START)


def ticking() -> Callable[[], datetime]:
    """A clock that advances by a second at each call."""
    ticks: Iterator[datetime] = (START + timedelta(seconds=n) for n in range(1000))
    return lambda: next(ticks)


def planned() -> AgentState:
    return AgentState.from_user_input("Is my policy active?", "s-1", clock=lambda: START)


def everything_in(value: Any) -> Iterator[Any]:
    """The value and all that can be reached from it."""
    yield value
    if is_dataclass(value):
        for field in fields(value):
            yield from everything_in(getattr(value, field.name))
    elif isinstance(value, FrozenDict):
        for key, item in value.items():
            yield key
            yield from everything_in(item)
    elif isinstance(value, tuple):
        for item in value:
            yield from everything_in(item)


def test_user_input_starts_planning_with_the_input_as_goal() -> None:
    state = planned()
    assert state.phase is AgentPhase.PLANNING
    assert state.memory.current_goal == "Is my policy active?"
    assert state.history == (Message(Role.USER, "Is my policy active?", START),)
    assert (state.session_id, state.iteration) == ("s-1", 0)
    assert state.created_at == state.updated_at == START


def test_sessions_get_ids_of_their_own() -> None:
    assert AgentState.from_user_input("a").session_id != AgentState.from_user_input("a").session_id


def test_a_system_prompt_stands_first() -> None:
    state = AgentState.from_user_input("hello", system_prompt="Be brief.")
    assert [(message.role, message.content) for message in state.history] == [
        (Role.SYSTEM, "Be brief."),
        (Role.USER, "hello"),
    ]


def test_each_transition_raises_iteration_and_sets_updated_at() -> None:
    clock = ticking()
    state = AgentState.from_user_input("hello", clock=clock)
    for step, change in enumerate(
        (
            lambda s: s.to_executing(clock=clock),
            lambda s: s.record_observation("look", CALL, clock=clock),
            lambda s: s.to_reflecting(clock=clock),
            lambda s: s.remember(s.memory.note("seen"), clock=clock),
            lambda s: s.to_planning(clock=clock),
            lambda s: s.to_done("yes", clock=clock),
            lambda s: s.to_planning("and now?", clock=clock),
            lambda s: s.to_error("down", clock=clock),
        ),
        start=1,
    ):
        state = change(state)
        assert state.iteration == step
        assert state.updated_at == START + timedelta(seconds=step)
        assert state.created_at == START


def test_done_keeps_the_answer_as_the_last_message() -> None:
    state = planned().to_done("It is.")
    assert state.final_answer == "It is."
    assert (state.history[-1].role, state.history[-1].content) == (Role.ASSISTANT, "It is.")


def test_a_follow_up_is_the_new_goal_and_keeps_what_is_known() -> None:
    memory = planned().memory.plan(["look"]).complete_step("look").note("roof only").record_tool_call(CALL)
    state = planned().remember(memory).to_done("It is.").to_planning("And the deductible?")
    assert state.memory == WorkingMemory("And the deductible?", notes=("roof only",), tool_calls=(CALL,))
    assert state.history[-1].content == "And the deductible?"
    assert state.final_answer is None


def test_the_first_message_to_an_idle_agent_is_its_goal() -> None:
    state = AgentState("s-1").to_planning("Is my policy active?")
    assert state.phase is AgentPhase.PLANNING
    assert state.memory.current_goal == "Is my policy active?"
    assert [message.content for message in state.history] == ["Is my policy active?"]


def test_resuming_after_an_error_clears_it_and_keeps_goal_and_plan() -> None:
    failed = planned().remember(planned().memory.plan(["look"])).to_error("the model is down")
    assert failed.error_message == "the model is down"
    resumed = failed.to_planning("Use the archive.")
    assert resumed.error_message is None
    assert resumed.memory == failed.memory
    assert resumed.history[-1].content == "Use the archive."


def test_an_observation_keeps_the_thought_the_call_and_its_result() -> None:
    state = planned().to_executing().record_observation("I must look it up.", CALL, FAILED)
    thought, found, missed = state.history[-3:]
    assert (thought.role, thought.content) == (Role.ASSISTANT, "I must look it up.")
    assert [call["id"] for call in thought.metadata["tool_calls"]] == ["c1", "c2"]
    assert (found.role, found.content) == (Role.TOOL, '{"status": "active"}')
    assert (found.metadata["tool_call_id"], missed.metadata["tool_call_id"]) == ("c1", "c2")
    assert missed.content == "[Tool Error] look_up_claim failed: no such claim"
    assert state.memory.tool_calls == (CALL, FAILED)


def test_calls_of_one_reply_must_differ() -> None:
    with pytest.raises(ValueError, match="an id of its own"):
        planned().record_observation("twice", CALL, CALL)


@pytest.mark.parametrize(
    "change",
    [
        lambda s: s.to_executing(),
        lambda s: s.to_done("yes"),
        lambda s: s.to_error("down"),
        lambda s: s.record_observation("look", CALL),
        lambda s: s.remember(s.memory.note("a").plan(["b"]).record_tool_call(CALL)),
    ],
)
def test_a_transition_leaves_the_old_state_as_it_was(change: Callable[[AgentState], AgentState]) -> None:
    old = planned().record_observation("first", FAILED)
    before = repr(old)
    new = change(old)
    assert repr(old) == before
    assert new != old


def test_nothing_that_can_change_is_reachable_from_a_state() -> None:
    changeable = {"a": [1, {"b": [2]}]}
    call = ToolCall("c1", "look", changeable, [changeable])
    memory = LooseMemory("goal", ["a"], [], ["n"], [call])
    state = planned().record_observation("look", call).remember(memory)
    for value in everything_in(state):
        assert not isinstance(value, list | dict | set | bytearray)
        hash(value)
        if is_dataclass(value):
            with pytest.raises(FrozenInstanceError):
                setattr(value, fields(value)[0].name, None)
        if isinstance(value, FrozenDict):
            with pytest.raises(TypeError):
                value["new"] = 1  # type: ignore[index]
            with pytest.raises(AttributeError):
                value._items = {}


def test_a_state_shares_nothing_with_what_it_was_made_of() -> None:
    parts = ["roof"]
    arguments: dict[str, Any] = {"parts": parts}
    result = [{"status": "active"}]
    history = [Message(Role.USER, "hello", START)]
    call = ToolCall("c1", "look", arguments, result, timestamp=START)
    state = LooseState(history=history, memory=LooseMemory(tool_calls=[call]))
    before = repr(state)
    parts.append("cellar")
    arguments["more"] = 1
    result[0]["status"] = "lapsed"
    history.clear()
    assert repr(state) == before


def test_states_can_be_copied_pickled_compared_and_hashed() -> None:
    state = planned().record_observation("look", CALL)
    for twin in (copy.copy(state), copy.deepcopy(state), pickle.loads(pickle.dumps(state))):
        assert twin == state
        assert hash(twin) == hash(state)
    assert state != planned()


def test_a_call_that_failed_shows_its_error_to_the_model() -> None:
    assert not FAILED.succeeded
    assert FAILED.to_observation() == "[Tool Error] look_up_claim failed: no such claim"


@pytest.mark.parametrize(
    "result,text",
    [
        ("as it is", "as it is"),
        ({"größe": [1, None]}, '{"größe": [1, null]}'),
        (7, "7"),
        (True, "true"),
        (None, "null"),
        ("", ""),
    ],
)
def test_a_call_that_succeeded_shows_its_result_as_text(result: Any, text: str) -> None:
    call = ToolCall("c", "look", {}, result)
    assert call.succeeded
    assert call.to_observation() == text


def test_the_pending_steps_are_the_plan_without_what_is_completed() -> None:
    memory = WorkingMemory().plan(["look", "ask", "look"])
    assert memory.pending_steps == ("look", "ask", "look")
    memory = memory.complete_step("look")
    assert memory.pending_steps == ("ask", "look")
    memory = memory.complete_step("look").complete_step("ask")
    assert memory.pending_steps == ()
    assert memory.completed_steps == ("look", "look", "ask")
    assert memory.plan(["look", "tell"]).pending_steps == ("tell",)


def test_a_step_that_is_not_pending_cannot_be_completed() -> None:
    with pytest.raises(ValueError, match=r"'sing' is not a pending step of the plan\. Pending: 'look'\."):
        WorkingMemory().plan(["look"]).complete_step("sing")
    with pytest.raises(ValueError, match="Pending: none"):
        WorkingMemory().complete_step("sing")


def test_memory_gives_a_new_memory_each_time() -> None:
    empty = WorkingMemory()
    full = empty.pursue("goal").note("one").note("two").record_tool_call(CALL)
    assert full == WorkingMemory("goal", notes=("one", "two"), tool_calls=(CALL,))
    assert empty == WorkingMemory()


def test_times_are_kept_in_utc_and_naive_ones_refused() -> None:
    east = START.astimezone(timezone(timedelta(hours=9)))
    message = Message(Role.USER, "hello", east)
    assert message.timestamp == START
    assert message.timestamp.tzinfo is UTC
    for make in (
        lambda naive: Message(Role.USER, "hello", naive),
        lambda naive: ToolCall("c", "look", timestamp=naive),
        lambda naive: AgentState(created_at=naive),
        lambda naive: AgentState(updated_at=naive),
        lambda naive: planned().to_executing(clock=lambda: naive),
    ):
        with pytest.raises(ValueError, match="has no time zone"):
            make(START.replace(tzinfo=None))


def test_times_default_to_now_in_utc() -> None:
    before = datetime.now(UTC)
    state = AgentState.from_user_input("hello").to_executing()
    assert before <= state.created_at <= state.updated_at <= datetime.now(UTC)
    assert state.updated_at.tzinfo is UTC


@pytest.mark.parametrize("session_id", ["a", "7", "A-b_c.d", "2026-01-02.x", "x" * 128])
def test_safe_session_ids_are_taken(session_id: str) -> None:
    assert check_session_id(session_id) == session_id
    assert AgentState(session_id).session_id == session_id


UNSAFE_IDS = [
    "",
    ".",
    "..",
    "../x",
    "a/b",
    "a\\b",
    "/etc/passwd",
    ".hidden",
    "a.",
    "-rf",
    "a b",
    "a\n",
    "a\0",
    "é",
    "x" * 129,
]


@pytest.mark.parametrize("session_id", [*UNSAFE_IDS, None, 7])
def test_other_session_ids_are_refused(session_id: Any) -> None:
    with pytest.raises(ValueError, match="is not a session id"):
        AgentState(session_id)


@pytest.mark.parametrize(
    "make,error,text",
    [
        (lambda: LooseCall("c", "look", {"at": START}), TypeError, r"arguments\['at'\] is a datetime"),
        (
            lambda: LooseCall("c", "look", {"a": [{1: 2}]}),
            TypeError,
            r"arguments\['a'\]\[0\]\[1\]: the key is an int",
        ),
        (lambda: LooseCall("c", "look", {}, {"set": {1}}), TypeError, r"result\['set'\] is a set"),
        (lambda: LooseCall("c", "look", {}, [float("nan")]), ValueError, r"result\[0\] is nan"),
        (lambda: LooseCall("c", "look", {}, duration_ms=float("nan")), ValueError, "duration_ms is nan"),
        (lambda: LooseCall("c", "look", {}, duration_ms=float("inf")), ValueError, "duration_ms is inf"),
        (lambda: LooseCall("c", "look", []), TypeError, "arguments is a list, not a Mapping"),
        (lambda: LooseCall(7, "look"), TypeError, "call_id is an int, not a str"),
        (lambda: LooseCall("c", "look", {}, error=7), TypeError, r"error is an int, not a str \| None"),
        (lambda: LooseMessage("robot", "hello"), ValueError, "'robot' is not a valid Role"),
        (lambda: LooseMessage(Role.USER, None), TypeError, "content is None, not a str"),
        (lambda: LooseMemory(plan_steps="look"), TypeError, "plan_steps is one text"),
        (lambda: LooseMemory(notes=[1]), TypeError, "notes contains something other than str"),
        (
            lambda: LooseState(history=[{"role": "user"}]),
            TypeError,
            "history contains something other than Message",
        ),
        (lambda: LooseState(memory={}), TypeError, "memory is a dict, not a WorkingMemory"),
        (lambda: LooseState(phase="asleep"), ValueError, "'asleep' is not a valid AgentPhase"),
        (lambda: LooseState.from_user_input("hello").to_done(None), TypeError, "content is None"),
    ],
)
def test_what_could_not_be_kept_is_refused_with_its_place(
    make: Callable[[], Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        make()


def test_phases_and_roles_may_be_given_as_text() -> None:
    assert LooseState(phase="done").phase is AgentPhase.DONE
    assert LooseMessage("user", "hello").role is Role.USER


def test_frozen_mappings_read_like_the_json_they_came_from() -> None:
    plain = {"z": [1, {"y": None}], "a": "text"}
    frozen = freeze(plain)
    assert frozen == plain
    assert list(frozen) == ["z", "a"]
    assert thaw(frozen) == plain
    assert freeze(frozen) is frozen
    assert repr(frozen) == "FrozenDict({'z': (1, FrozenDict({'y': None})), 'a': 'text'})"
    assert replace(CALL, arguments=frozen).arguments is not plain


def test_a_mapping_given_for_notes_is_refused_and_not_halved() -> None:
    with pytest.raises(TypeError, match="notes is a mapping, of which only the keys would be kept"):
        WorkingMemory(notes={"colour": "red"})  # type: ignore[arg-type]
