"""Messages are turned to JSON and back as Haystack does it, whichever way is taken."""

import copy
from typing import Any

import pytest
from haystack.dataclasses import ChatMessage, Document, ImageContent, ReasoningContent, TextContent, ToolCall

from agentstate.durable.state import chat_messages
from agentstate.durable.state.encoding import decode, encode_lossy

CALL = ToolCall("look", {"q": "a", "n": 1, "deep": {"list": [1, 2.5, None, True]}}, id="c1")
PLAIN = [
    ChatMessage.from_user("hi"),
    ChatMessage.from_user("hé", name="ann", meta={"at": {"deep": [1]}}),
    ChatMessage.from_system(""),
    ChatMessage.from_assistant("text", tool_calls=[CALL, ToolCall("look", {})], meta={"usage": {"n": 3}}),
    ChatMessage.from_assistant(tool_calls=[ToolCall("look", {"q": ""}, extra={"kind": "x"})]),
    ChatMessage.from_tool("found", origin=CALL, error=True),
]
OTHER = [
    ChatMessage.from_user("lone \ud800 and \x00"),
    ChatMessage.from_user("hi", meta={"document": Document(content="d"), "n": 10**5000}),
    ChatMessage.from_user("hi", meta={"$type": "uuid", "value": "no"}),
    ChatMessage.from_user("hi", meta={1: "one"}),  # type: ignore[dict-item]
    ChatMessage.from_user(content_parts=["see", ImageContent("aGk=", "image/png")]),
    ChatMessage.from_assistant("so", reasoning=ReasoningContent("because")),
    ChatMessage.from_assistant(tool_calls=[ToolCall("look", {"document": Document(content="d"), "t": (1,)})]),
    ChatMessage.from_assistant(tool_calls=[ToolCall("look", {"n": float("nan"), "big": 1e300})]),
    ChatMessage.from_tool([TextContent("one"), TextContent("two")], origin=CALL),
]


@pytest.mark.parametrize("message", [*PLAIN, *OTHER], ids=range(len(PLAIN) + len(OTHER)))
def test_a_message_is_encoded_and_built_as_by_its_own_methods(message: ChatMessage) -> None:
    plain = message.to_dict()
    expected, _ = encode_lossy(plain)
    body, is_unchanged = chat_messages.encode_message(message)
    assert (repr(body), is_unchanged) == (repr(expected), expected == plain)
    built = ChatMessage.from_dict(decode(dict(expected)))
    for is_plain in (False, True) if message in PLAIN else (False,):
        back = chat_messages.message_from(copy.deepcopy(body), is_plain=is_plain)
        assert repr(vars(back)) == repr(vars(built))
        assert [repr(vars(part)) for part in back._content] == [repr(vars(part)) for part in built._content]


@pytest.mark.parametrize("message", PLAIN, ids=range(len(PLAIN)))
def test_a_message_of_texts_and_calls_needs_no_method_of_its_own(
    message: ChatMessage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If this fails with a new version of Haystack, its messages have other fields: loading takes twice as long."""
    body = chat_messages.message_body(message)
    monkeypatch.setattr(ChatMessage, "to_dict", None)
    monkeypatch.setattr(ChatMessage, "from_dict", None)
    assert chat_messages.message_from(chat_messages.message_body(message)) == message
    assert chat_messages.message_body(message) == body


@pytest.mark.parametrize("message", [*PLAIN, *OTHER[4:6]], ids=range(len(PLAIN) + 2))
def test_other_versions_of_haystack_are_given_its_own_methods(
    message: ChatMessage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat_messages, "_IS_KNOWN", False)
    assert chat_messages.message_from(chat_messages.message_body(message)) == message


def test_a_body_shares_nothing_with_its_message() -> None:
    message = ChatMessage.from_assistant(tool_calls=[ToolCall("look", {"deep": [1]})], meta={"a": {}})
    body = chat_messages.message_body(message)
    back = chat_messages.message_from(body)
    for each in (message, back):
        each.tool_calls[0].arguments["deep"].append(2)
        each.meta["a"]["b"] = 1
    assert body == {
        "role": "assistant",
        "meta": {"a": {}},
        "name": None,
        "content": [
            {"tool_call": {"tool_name": "look", "arguments": {"deep": [1]}, "id": None, "extra": None}}
        ],
    }


@pytest.mark.parametrize(
    "body",
    [
        {"role": "nobody", "meta": {}, "name": None, "content": []},
        {"role": "user", "meta": {}, "name": None, "content": [{"unknown": 1}]},
        {"role": "tool", "meta": {}, "name": None, "content": [{"tool_call_result": {"result": "r"}}]},
        {"meta": {}},
    ],
)
def test_a_body_that_is_no_message_is_refused_as_by_haystack(body: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"ChatRole|content part|required"):
        chat_messages.message_from(body)


def test_a_body_of_an_earlier_haystack_is_read() -> None:
    old: dict[str, Any] = {
        "role": "assistant",
        "meta": {},
        "name": None,
        "content": [{"tool_call": {"tool_name": "t", "arguments": {}}}],
    }
    assert chat_messages.message_from(old).tool_calls == [ToolCall("t", {})]
    assert chat_messages.message_from({"role": "user", "content": "hi"}) == ChatMessage.from_user("hi")
