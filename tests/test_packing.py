"""Messages become rows and come back whole, and what a call holds is not stored again."""

import json
from typing import Any

import pytest
from haystack.dataclasses import ChatMessage, ImageContent, ReasoningContent, TextContent, ToolCall
from hypothesis import given
from hypothesis import strategies as st

from agentstate.durable.state.chat_messages import message_body, message_from
from sessions_app.history.message_rows import AnsweredCall, answered_calls, fill_texts, pack, unpack
from sessions_app.models import Message
from tests import builders

texts = st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), max_size=30)
calls = st.builds(
    ToolCall,
    tool_name=st.sampled_from(["look", "pay"]),
    arguments=st.dictionaries(texts, st.integers() | texts, max_size=2),
    id=st.sampled_from(["c1", "c2"]),
)
# Some are equal in Python.
ARGUMENTS: list[dict[str, Any]] = [{}, {"a": 1}, {"a": 1.0}, {"a": True}, {"a": [1]}, {"a": [1.0]}]
names = st.none() | st.sampled_from(["ann", ""])
messages = st.one_of(
    st.builds(ChatMessage.from_user, texts, name=names, meta=st.dictionaries(texts, texts, max_size=1)),
    st.builds(ChatMessage.from_system, texts),
    st.builds(
        ChatMessage.from_assistant,
        texts | st.none(),
        tool_calls=st.lists(calls, min_size=1, max_size=2),
        reasoning=st.none() | st.builds(ReasoningContent, texts),
    ),
    st.builds(ChatMessage.from_tool, texts, origin=calls, error=st.booleans()),
    st.builds(
        ChatMessage.from_tool,
        st.lists(st.builds(TextContent, texts), min_size=1, max_size=2),
        origin=calls,
        error=st.booleans(),
    ),
)


answers = st.one_of(
    st.builds(ChatMessage.from_tool, texts, origin=calls, error=st.booleans()),
    st.builds(
        ChatMessage.from_tool,
        texts,
        origin=st.builds(
            ToolCall,
            tool_name=st.just("look"),
            arguments=st.sampled_from(ARGUMENTS),
            id=st.just("c1"),
            extra=st.sampled_from([None, {}, {"seen": True}]),
        ),
        meta=st.sampled_from([{}, {"a": 1}]),
    ),
)


def call(
    position: int, result: Any, arguments: Any = None, *, id: str = "c1", tool: str = "t"
) -> AnsweredCall:
    return AnsweredCall(position, id, tool, arguments or {}, result)


def row(message: ChatMessage, *answered: AnsweredCall) -> Message:
    role, text, rest = pack(message_body(message), {call.call_id: call for call in answered})
    return Message(role=role, text=text, body=json.loads(json.dumps(rest)))


@pytest.mark.slow
@given(
    messages | answers,
    st.sampled_from(["look", "pay"]),
    st.sampled_from(ARGUMENTS),
    st.data(),
)
def test_a_message_comes_back_whole(
    message: ChatMessage, tool: str, arguments: dict[str, Any], data: st.DataObject
) -> None:
    told = [result.result for result in message.tool_call_results if isinstance(result.result, str)]
    results = st.sampled_from([*told, "another", {"a": "another"}, *({"text": text} for text in told)])
    answered = [
        call(number, data.draw(results), arguments, id=call_id, tool=tool)
        for number, call_id in enumerate(["c1", "c2"], 10)
    ]
    packed = row(message, *answered)
    whole = unpack(packed, {call.position: call for call in answered})
    assert message_from(whole) == message
    assert json.dumps(whole["content"], sort_keys=True) == json.dumps(
        message_body(message)["content"], sort_keys=True
    )
    assert packed.role == message.role.value


@pytest.mark.parametrize(
    "message",
    [
        ChatMessage.from_user(
            content_parts=["look at", ImageContent("aGk=", "image/png", validation=False), "this"]
        ),
        ChatMessage.from_assistant("", tool_calls=[ToolCall("t", {}, id="c1")]),
        ChatMessage.from_tool([TextContent("a"), TextContent("b")], origin=ToolCall("t", {}, id="c1")),
        ChatMessage.from_tool("", origin=ToolCall("t", {}, id=None)),
    ],
    ids=["parts", "empty text", "parts of a result", "no id"],
)
def test_odd_messages_come_back_whole(message: ChatMessage) -> None:
    assert message_from(unpack(row(message))) == message


@pytest.mark.slow
@given(messages)
def test_the_text_is_stored_in_its_column_and_nowhere_else(message: ChatMessage) -> None:
    marked = "\u2603 the words"
    body = message_body(message)
    for part in body["content"]:
        if isinstance(part.get("text"), str):
            part["text"] = marked
            break
        if isinstance((part.get("tool_call_result") or {}).get("result"), str):
            part["tool_call_result"]["result"] = marked
            break
    else:
        return
    _, text, rest = pack(body)
    assert text == marked
    assert marked not in json.dumps(rest, ensure_ascii=False)


def test_a_result_that_is_stored_with_its_call_is_not_stored_again() -> None:
    message = ChatMessage.from_tool("a long result", origin=ToolCall("t", {}, id="c1"))
    packed = row(message, call(7, "a long result"))
    assert (packed.text, packed.body) == ("", {"result_of": 7})
    assert row(message, call(7, "another result")).text == "a long result"
    assert row(message, call(7, "a long result", id="c2")).text == "a long result"


@pytest.mark.parametrize(
    "told, stored",
    [
        (ChatMessage.from_tool("r", origin=ToolCall("t", {"q": 1}, id="c1"), error=True), {"q": 1}),
        (ChatMessage.from_tool("r", origin=ToolCall("t", {"q": 1}, id="c1"), meta={"seen": True}), {"q": 1}),
        (ChatMessage.from_tool("r", origin=ToolCall("t", {"q": 1}, id="c1", extra={"seen": True})), {"q": 1}),
        (ChatMessage.from_tool("r", origin=ToolCall("other", {"q": 1}, id="c1")), {"q": 1}),
        (ChatMessage.from_tool("r", origin=ToolCall("t", {"q": 2}, id="c1")), {"q": 1}),
        (ChatMessage.from_tool("r", origin=ToolCall("t", {"q": 1.0}, id="c1")), {"q": 1}),
        (ChatMessage.from_tool("r", origin=ToolCall("t", {"q": [True]}, id="c1")), {"q": [1]}),
    ],
    ids=["an error", "with meta", "of the provider", "another tool", "another value", "a float", "a boolean"],
)
def test_what_a_message_has_beyond_its_call_is_stored_with_it(
    told: ChatMessage, stored: dict[str, Any]
) -> None:
    answered = call(7, "r", stored)
    packed = row(told, answered)
    assert (packed.text, packed.body["result_of"]) == ("", 7)
    whole = unpack(packed, {7: answered})
    assert message_from(whole) == told
    assert repr(whole["content"]) == repr(message_body(told)["content"])


def test_two_messages_that_answer_a_call_share_nothing() -> None:
    answered = call(7, "r", {"lines": [1]})
    packed = row(ChatMessage.from_tool("r", origin=ToolCall("t", {"lines": [1]}, id="c1")), answered)
    first, second = (unpack(packed, {7: answered}) for _ in range(2))
    first["content"][0]["tool_call_result"]["origin"]["arguments"]["lines"].append(2)
    assert second["content"][0]["tool_call_result"]["origin"]["arguments"] == {"lines": [1]}


@pytest.mark.parametrize(
    "result",
    [
        {"total": 3, "text": "a long result"},
        {"$type": "ordered", "keys": ["total", "text"], "value": {"total": 3, "text": "a long result"}},
    ],
    ids=["plain", "ordered"],
)
def test_one_value_of_a_result_that_the_model_was_shown_is_not_stored_again(result: dict[str, Any]) -> None:
    message = ChatMessage.from_tool("a long result", origin=ToolCall("t", {}, id="c1"))
    answered = call(7, result)
    packed = row(message, answered)
    assert (packed.text, packed.body) == ("", {"result_of": 7, "result_source": "text"})
    assert message_from(unpack(packed, {7: answered})) == message


@pytest.mark.parametrize(
    "result",
    [
        {"total": 3},
        ["a long result"],
        {"$type": "tuple", "value": ["a long result"]},
        {"text": ["a long result"]},
    ],
    ids=["another value", "a list", "tagged", "deeper"],
)
def test_a_text_that_is_no_value_of_the_result_is_stored_with_the_message(result: Any) -> None:
    message = ChatMessage.from_tool("a long result", origin=ToolCall("t", {}, id="c1"))
    packed = row(message, call(7, result))
    assert (packed.text, set(packed.body)) == ("a long result", {"content"})


@pytest.mark.django_db
def test_the_text_of_many_messages_costs_one_query(django_assert_num_queries: Any) -> None:
    history = builders.asked()
    for number in range(3):
        history.reply("", [("lookup_policy", {"policy": f"POL-{number}"})])
        history.finish(history.calls[-1], f"policy {number}")
        history.checkpoint("step")
    found = list(Message.objects.visible_on(history.branch).order_by("position"))
    with django_assert_num_queries(1):
        fill_texts(history.branch, found)
    assert [message.text for message in found if message.role == "tool"] == [
        "policy 0",
        "policy 1",
        "policy 2",
    ]
    with django_assert_num_queries(0):
        assert answered_calls(history.branch, found[:2]) == {}
