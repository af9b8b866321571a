"""The model is sent a list that a chat API accepts, and the oldest turns are dropped from it first."""

import json
import sys
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentstate.domain import (
    AgentState,
    InconsistentHistory,
    Message,
    Role,
    ToolCall,
    approximate_tokens,
    exact_tokens,
    history_to_messages,
    truncate_history,
)

NOW = datetime(2026, 1, 2, tzinfo=UTC)


def call(call_id: str, result: str = "found", **arguments: Any) -> ToolCall:
    return ToolCall(call_id, "look", arguments, result, timestamp=NOW)


def asking(*calls: ToolCall) -> Message:
    return Message.asking("I look.", calls, NOW)


def answering(one: ToolCall) -> Message:
    return Message.answering(one, NOW)


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def chat(turns: int) -> list[dict[str, Any]]:
    return [message for n in range(turns) for message in (user(f"question {n}"), assistant(f"answer {n}"))]


def assert_an_api_takes(messages: list[dict[str, Any]]) -> None:
    """A message with tool calls is followed by their results, all of them and nothing else."""
    waiting: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            assert message["tool_call_id"] in waiting
            waiting.remove(message["tool_call_id"])
        else:
            assert not waiting
            waiting = [call["id"] for call in message.get("tool_calls", ())]
    assert not waiting


def test_a_conversation_becomes_openai_chat_messages() -> None:
    state = (
        AgentState.from_user_input("Is the roof insured?", system_prompt="Be brief.")
        .to_executing()
        .record_observation("I look it up.", call("c1", "yes", number="P-7", größe=[1]), call("c2", "no"))
        .to_reflecting()
        .to_done("It is.")
    )
    assert history_to_messages(state.history) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Is the roof insured?"},
        {
            "role": "assistant",
            "content": "I look it up.",
            "tool_calls": [
                {
                    "id": "c1",
                    "type": "function",
                    "function": {"name": "look", "arguments": '{"number": "P-7", "größe": [1]}'},
                },
                {"id": "c2", "type": "function", "function": {"name": "look", "arguments": "{}"}},
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "yes"},
        {"role": "tool", "tool_call_id": "c2", "content": "no"},
        {"role": "assistant", "content": "It is."},
    ]
    json.dumps(history_to_messages(state.history))


def test_a_failed_call_is_told_to_the_model() -> None:
    failed = ToolCall("c1", "look", {}, error="no such policy")
    messages = history_to_messages(AgentState().record_observation("", failed).history)
    assert messages[0]["content"] is None
    assert messages[1]["content"] == "[Tool Error] look failed: no such policy"


def test_results_follow_directly_after_their_request_in_its_order() -> None:
    one, two = call("c1", "one"), call("c2", "two")
    messages = history_to_messages(
        [asking(one, two), answering(two), Message(Role.USER, "hurry", NOW), answering(one)]
    )
    assert [message["content"] for message in messages] == ["I look.", "one", "two", "hurry"]
    assert_an_api_takes(messages)


def test_a_result_that_came_after_another_request_finds_its_own() -> None:
    one, two = call("c1", "one"), call("c2", "two")
    messages = history_to_messages([asking(one), asking(two), answering(two), answering(one)])
    assert [message["content"] for message in messages] == ["I look.", "one", "I look.", "two"]
    assert_an_api_takes(messages)


def test_an_id_used_again_belongs_to_the_latest_request() -> None:
    first, second = call("c1", "first"), call("c1", "second")
    messages = history_to_messages([asking(first), answering(first), asking(second), answering(second)])
    assert [message["content"] for message in messages] == ["I look.", "first", "I look.", "second"]


@pytest.mark.parametrize(
    "history,text",
    [
        ([answering(call("c1"))], "answers the call 'c1', which no message asked for"),
        ([answering(call("c1")), asking(call("c1"))], "answers the call 'c1', which no message asked for"),
        ([Message(Role.TOOL, "lost", NOW)], "answers the call None"),
        ([asking(call("c1"))], "The call 'c1' of look has no result"),
        ([asking(call("c1")), answering(call("c1")), answering(call("c1"))], "The call 'c1' has two results"),
        (
            [Message(Role.ASSISTANT, "", NOW, {"tool_calls": [{"id": "c1"}]})],
            "lacks an id, a name or arguments",
        ),
        ([Message(Role.ASSISTANT, "", NOW, {"tool_calls": ["c1"]})], "asks for 'c1', which lacks"),
    ],
)
def test_a_history_that_no_api_takes_is_refused(history: list[Message], text: str) -> None:
    with pytest.raises(InconsistentHistory, match=text):
        history_to_messages(history)


@pytest.mark.parametrize(
    "text,tokens", [("", 0), ("a", 1), ("abcd", 1), ("abcde", 2), ("a" * 400, 100), ("保険", 2)]
)
def test_about_four_characters_are_a_token(text: str, tokens: int) -> None:
    assert approximate_tokens(text) == tokens


def test_what_fits_is_left_alone() -> None:
    messages = [{"role": "system", "content": "Be brief."}, *chat(20)]
    assert truncate_history(messages, 10_000) == messages
    assert truncate_history([], 0) == []


def test_the_oldest_go_first_and_the_system_messages_stay_where_they_are() -> None:
    first = {"role": "system", "content": "Be brief."}
    later = {"role": "system", "content": "Be kind."}
    messages = [first, *chat(10), later, *chat(2)]
    assert truncate_history(messages, 0, keep_last_turns=3) == [first, *chat(10)[-2:], later, *chat(2)]


def test_the_last_six_turns_stay_whatever_the_budget() -> None:
    assert truncate_history(chat(40), 1) == chat(40)[-12:]
    assert truncate_history(chat(4), 1) == chat(4)


def test_a_long_run_on_one_question_is_cut_too() -> None:
    state = AgentState.from_user_input("Research everything.")
    for step in range(50):
        state = state.record_observation(f"Step {step}", call(f"c{step}", "x" * 100))
    cut = truncate_history(history_to_messages(state.history), 100)
    assert [message["content"] for message in cut if message["role"] == "assistant"] == [
        f"Step {step}" for step in range(44, 50)
    ]
    assert_an_api_takes(cut)


def test_the_newest_question_is_a_turn_of_its_own() -> None:
    messages = [*chat(3), user("and"), user("now?")]
    assert truncate_history(messages, 0, keep_last_turns=1) == [user("and"), user("now?")]


def test_a_result_that_came_late_keeps_its_call() -> None:
    one = call("c1")
    request, result = history_to_messages([asking(one), answering(one)])
    messages = [*chat(2), request, user("hurry"), assistant("Soon."), result, *chat(1)]
    assert truncate_history(messages, 0, keep_last_turns=2) == messages[4:]


def test_the_token_counter_can_be_chosen() -> None:
    seen: list[str] = []

    def every_character(text: str) -> int:
        seen.append(text)
        return len(text)

    one = call("c1", "found", number="P-7")
    messages = [*chat(1), *history_to_messages([asking(one), answering(one)])]
    exact = sum(len(text) for text in ("I look.", "look", '{"number": "P-7"}', "found")) + 2 * 4
    assert truncate_history(messages, exact, keep_last_turns=0, count_tokens=every_character) == messages[2:]
    assert truncate_history(messages, exact - 1, keep_last_turns=0, count_tokens=every_character) == []
    assert {"I look.", "look", '{"number": "P-7"}', "found"} <= set(seen)


def test_content_in_parts_counts_as_well() -> None:
    parts = {"role": "user", "content": [{"type": "text", "text": "x" * 4000}]}
    assert truncate_history([parts, assistant("Long."), *chat(1)], 500, keep_last_turns=0) == chat(1)


@pytest.mark.parametrize("budget,turns", [(-1, 6), (100, -1)])
def test_a_negative_budget_is_refused(budget: int, turns: int) -> None:
    with pytest.raises(ValueError, match="must be 0 or more"):
        truncate_history(chat(1), budget, keep_last_turns=turns)


texts = st.text(max_size=40)
turns_of_messages = st.one_of(
    texts.map(lambda text: [Message(Role.USER, text, NOW)]),
    texts.map(lambda text: [Message(Role.SYSTEM, text, NOW)]),
    texts.map(lambda text: [Message(Role.ASSISTANT, text, NOW)]),
    st.lists(texts, min_size=1, max_size=3).map(
        lambda results: [
            asking(*(call(f"c{n}", text) for n, text in enumerate(results))),
            *(answering(call(f"c{n}", text)) for n, text in enumerate(results)),
        ]
    ),
)
histories = st.lists(turns_of_messages, max_size=20).map(
    lambda turns: [message for turn in turns for message in turn]
)


def cost(messages: list[dict[str, Any]]) -> int:
    total = 0
    for message in messages:
        total += 4 + approximate_tokens(message["content"] or "")
        for asked in message.get("tool_calls", ()):
            total += approximate_tokens(asked["function"]["name"])
            total += approximate_tokens(asked["function"]["arguments"])
    return total


@pytest.mark.slow
@given(histories, st.integers(0, 400), st.integers(0, 8))
def test_truncation_keeps_its_promises_for_any_history(
    history: list[Message], budget: int, turns: int
) -> None:
    messages = history_to_messages(history)
    original = json.dumps(messages)
    cut = truncate_history(messages, budget, keep_last_turns=turns)

    assert json.dumps(messages) == original, "the input is left alone"
    assert cut == truncate_history(messages, budget, keep_last_turns=turns), "the same again"
    assert truncate_history(cut, budget, keep_last_turns=turns) == cut, "cutting twice cuts no more"
    assert_an_api_takes(messages)
    assert_an_api_takes(cut)

    def others(some: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [message for message in some if message["role"] != "system"]

    assert [m for m in cut if m["role"] == "system"] == [m for m in messages if m["role"] == "system"]
    kept = others(cut)
    assert kept == others(messages)[len(others(messages)) - len(kept) :], "only the oldest are dropped"

    replies = sum(message["role"] == "assistant" for message in kept)
    all_replies = sum(message["role"] == "assistant" for message in messages)
    if cost(messages) <= budget:
        assert cut == messages
    if cost(cut) > budget:
        assert replies <= turns, "over the budget only for the last turns"
    if len(kept) < len(others(messages)):
        assert cost(messages) > budget, "nothing is dropped without need"
    waiting_users = bool(kept) and kept[-1]["role"] == "user"
    assert replies + waiting_users >= min(turns, all_replies), "the last turns are kept"


@pytest.mark.slow
@given(histories, st.integers(0, 300), st.integers(0, 100))
def test_a_greater_budget_never_keeps_less(history: list[Message], budget: int, more: int) -> None:
    messages = history_to_messages(history)
    small = truncate_history(messages, budget, keep_last_turns=2)
    large = truncate_history(messages, budget + more, keep_last_turns=2)
    assert len(small) <= len(large)


# Conveniences


def test_a_state_is_taken_like_its_history() -> None:
    state = AgentState.from_user_input("hi").to_executing().record_observation("I look.", call("c1"))
    assert history_to_messages(state) == history_to_messages(state.history)


def test_without_a_budget_a_history_is_truncated_to_8000_tokens() -> None:
    long = [user("x" * 4000), assistant("y" * 4000)]  # 2008 tokens
    assert truncate_history(long * 10, keep_last_turns=0) == long * 3


def test_exact_counts_are_those_of_tiktoken(monkeypatch: pytest.MonkeyPatch) -> None:
    class Encoding:
        def encode(self, text: str, disallowed_special: tuple[str, ...]) -> list[str]:
            return text.split()

    monkeypatch.setitem(sys.modules, "tiktoken", SimpleNamespace(get_encoding={"o200k_base": Encoding()}.get))
    assert exact_tokens()("one two <|endoftext|>") == 3


def test_exact_counts_without_their_extra_say_which_one_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tiktoken", None)
    with pytest.raises(ImportError, match=r"pip install 'agentstate\[tokens\]'"):
        exact_tokens()


def test_a_tokenizer_that_cannot_be_fetched_says_how_to_take_it_along(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unreachable(name: str) -> None:
        raise ConnectionError("no such host")

    monkeypatch.setitem(sys.modules, "tiktoken", SimpleNamespace(get_encoding=unreachable))
    with pytest.raises(
        OSError, match=r"'o200k_base' cannot be fetched: no such host\. .* TIKTOKEN_CACHE_DIR"
    ):
        exact_tokens()


def test_a_message_is_plain_json_and_comes_back_as_it_was() -> None:
    message = asking(call("c1", number=[1]))
    data = message.to_dict()
    assert json.loads(json.dumps(data)) == {
        "role": "assistant",
        "content": "I look.",
        "timestamp": "2026-01-02T00:00:00+00:00",
        "metadata": {"tool_calls": [{"id": "c1", "name": "look", "arguments": {"number": [1]}}]},
    }
    assert Message.from_dict(data) == message


def test_a_call_without_an_id_gets_one_of_its_own_but_needs_a_name() -> None:
    first, second = ToolCall(tool_name="look"), ToolCall(tool_name="look")
    assert first.call_id != second.call_id
    with pytest.raises(TypeError, match="tool_name"):
        ToolCall()
