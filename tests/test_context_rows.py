"""The context of a run has each message whole, wherever its text is stored."""

from typing import Any

import pytest
from haystack.dataclasses import ChatMessage, ToolCall

from agentstate.durable.state.chat_messages import as_message, message_body
from sessions_app.history import context_rows
from sessions_app.history.message_rows import FEW, AnsweredCall
from sessions_app.history.restore import stored_context
from sessions_app.models import Message
from sessions_app.runtime import step_rows
from tests import builders

pytestmark = pytest.mark.django_db

TEXT = "It is storm damage, and 'nothing \"else\"' \\ ü."
ORDERED = {"$type": "ordered", "keys": ["text", "id"], "value": {"id": 7, "text": TEXT}}


def in_context(results: list[Any]) -> tuple[list[ChatMessage], list[ChatMessage]]:
    """The messages that answer calls with these results by `TEXT`, as they were stored and as a run gets them."""
    history = builders.asked()
    told = []
    for result in results:
        history.reply("", [("look", {"lines": [1, {"deep": 2}]})])
        call = history.finish(history.calls[-1], result)
        told.append(ChatMessage.from_tool(TEXT, origin=ToolCall("look", call.arguments, id=call.call_id)))
        answered = AnsweredCall(call.position, call.call_id, call.tool, call.arguments, result)
        row = step_rows.NewMessageRow(history.place(), message_body(told[-1]), history.now)
        step_rows.messages(history.branch, [row], {call.call_id: answered})
        history.calls = []
        history.enter("reflecting")
    context = stored_context(history.branch, history.checkpoint())
    return told, [message for message in map(as_message, context) if message.tool_call_results]


@pytest.mark.parametrize(
    "result",
    [
        TEXT,
        {"text": TEXT, "id": 7},
        ORDERED,
        {"value": {"text": "another"}, "text": TEXT},
        {"0": TEXT},
        {"1_0": TEXT},
        {"": TEXT},
        {"a name": TEXT},
        {'"': TEXT},
        {"größe": TEXT},
    ],
    ids=[
        "whole",
        "plain",
        "ordered",
        "value",
        "number",
        "spelt number",
        "empty",
        "space",
        "quote",
        "letters",
    ],
)
def test_a_text_that_is_stored_with_its_call_comes_back_whole(result: Any) -> None:
    told, found = in_context([result])
    assert not Message.objects.filter(role="tool").exclude(text="").exists()
    assert found == told


def test_texts_of_several_names_come_back_whole() -> None:
    told, found = in_context([TEXT, {"text": TEXT}, {"said": TEXT}, ORDERED, {"0": TEXT}])
    assert found == told


def test_two_texts_of_one_call_come_back_whole() -> None:
    history = builders.asked()
    history.reply("", [("look", {})])
    result = {"summary": "It is covered.", "details": TEXT}
    call = history.finish(history.calls[-1], result)
    origin = ToolCall("look", {}, id=call.call_id)
    told = [ChatMessage.from_tool(text, origin=origin) for text in result.values()]
    answered = AnsweredCall(call.position, call.call_id, call.tool, call.arguments, result)
    rows = [step_rows.NewMessageRow(history.place(), message_body(message), history.now) for message in told]
    step_rows.messages(history.branch, rows, {call.call_id: answered})
    history.calls = []
    context = stored_context(history.branch, history.checkpoint())
    assert [message for message in map(as_message, context) if message.tool_call_results] == told


@pytest.mark.parametrize("results", [[TEXT], [{"text": TEXT}, ORDERED], [TEXT, ORDERED]])
def test_the_texts_of_a_long_context_come_back_whole(results: list[Any]) -> None:
    told, found = in_context(results * (FEW // len(results) + 1))
    assert found == told


def test_of_a_result_with_more_than_the_text_only_the_text_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[list[tuple[Any, ...]]] = []

    original = context_rows.fetched

    def fetched(sql: str, parameters: Any) -> list[tuple[Any, ...]]:
        read.append(original(sql, parameters))
        return read[-1]

    monkeypatch.setattr("sessions_app.history.context_rows.fetched", fetched)
    told, found = in_context([{"text": TEXT, "pages": "all of the book"}])
    assert found == told
    assert "storm damage" in repr(read)
    assert "all of the book" not in repr(read)
