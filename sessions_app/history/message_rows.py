"""Converts messages to rows and back, without storing twice what a tool call holds.

A row's ``text`` holds the message's text (or the tool's result as the model saw it), ``body`` the rest of
`ChatMessage.to_dict()`. Where the tool call holds that text already, as its result or as one value of it, the message
holds the call's position instead, under `RESULT_OF`, and the name of the value under `RESULT_SOURCE`. A message that
says nothing beyond that call has no ``content`` at all; it is built again from the call.
"""

from collections.abc import Iterable, Mapping
from copy import deepcopy
from typing import Any, NamedTuple

from agentstate.names import TYPE_TAG
from sessions_app.models import Branch, Message, ToolCall

Body = dict[str, Any]
RESULT_OF = "result_of"
RESULT_SOURCE = "result_source"
_PLACE = {RESULT_OF, RESULT_SOURCE}
# So many calls are looked up by their positions. Of more, all that lie between the first and the last are read.
FEW = 100


class AnsweredCall(NamedTuple):
    """What a message that answers a call has in common with the call. ``arguments`` are the model's, encoded."""

    position: int
    call_id: str
    tool: str
    arguments: Any
    result: Any


def pack(body: Body, calls: Mapping[str, AnsweredCall] | None = None) -> tuple[str, str, Body]:
    """``(role, text, rest)`` of a message.

    :param calls: The stored calls that it may answer, by their ids.
    """
    rest = dict(body)
    role = rest.pop("role")
    content = [dict(part) for part in rest.get("content", ())]
    rest["content"] = content
    text = ""
    for part in content:
        if isinstance(part.get("text"), str):
            text, part["text"] = part["text"], None
            break
        answer = part.get("tool_call_result")
        if isinstance(answer, dict) and isinstance(answer.get("result"), str):
            text = answer["result"]
            part["tool_call_result"] = answer = {**answer, "result": None}
            call = (calls or {}).get((answer.get("origin") or {}).get("id") or "")
            if call is not None and (place := _place(text, call)):
                text = ""
                rest |= place
                if content == _content_of(call) and _has_arguments(answer["origin"], call):
                    del rest["content"]
            break
    for key, empty in (("meta", {}), ("name", None)):
        if rest.get(key) == empty:
            rest.pop(key, None)
    return role, text, rest


def _place(text: str, call: AnsweredCall) -> Body:
    """Where the text is stored already, as a part of a message's body; empty where it is not."""
    if call.result == text:
        return {RESULT_OF: call.position}
    source = next((name for name, value in values_of(call.result).items() if value == text), None)
    return {} if source is None else {RESULT_OF: call.position, RESULT_SOURCE: source}


def _has_arguments(origin: Body, call: AnsweredCall) -> bool:
    """Whether the arguments are the call's to the letter (1, 1.0 and True are equal), and none of them is tagged."""
    return _is_to_the_letter(origin["arguments"], call.arguments)


def _is_to_the_letter(value: Any, other: Any) -> bool:
    """Whether both are the same JSON, which has no tags."""
    if type(value) is not type(other):
        return False
    if type(value) is dict:
        return (
            TYPE_TAG not in value
            and list(value) == list(other)
            and all(_is_to_the_letter(value[key], other[key]) for key in value)
        )
    if type(value) is list:
        return len(value) == len(other) and all(map(_is_to_the_letter, value, other))
    return bool(value == other)


def _content_of(call: AnsweredCall, text: str | None = None) -> list[Body]:
    """The content of a message that only answers the call. It is the caller's, to change."""
    arguments = _copied(call.arguments)
    origin = {"tool_name": call.tool, "arguments": arguments, "id": call.call_id, "extra": None}
    return [{"tool_call_result": {"result": text, "origin": origin, "error": False}}]


def _copied(arguments: Any) -> Any:
    if type(arguments) is dict:
        for value in arguments.values():
            if type(value) is dict or type(value) is list:
                return deepcopy(arguments)
        return arguments.copy()
    return deepcopy(arguments)


def values_of(result: Any) -> Mapping[str, Any]:
    """The values of a call's result by their names, where it has names."""
    if not isinstance(result, dict):
        return {}
    if TYPE_TAG not in result:
        return result
    return result["value"] if result[TYPE_TAG] == "ordered" else {}


def text_in(result: Any, body: Body) -> str:
    """The text of a message with `RESULT_OF`, from the result of that call."""
    return _text_of(result, body.get(RESULT_SOURCE))


def _text_of(result: Any, source: str | None) -> str:
    return str(result if source is None else values_of(result)[source])


def unpack(message: Message, calls: Mapping[int, AnsweredCall] | None = None) -> Body:
    """The whole ``ChatMessage.to_dict()`` again.

    :param calls: As `answered_calls` returns them.
    """
    body = dict(message.body)
    if "content" in body:
        body["content"] = [
            {key: dict(value) if isinstance(value, dict) else value for key, value in part.items()}
            for part in body["content"]
        ]
    return complete(message.role, message.text, body, calls or {})


def complete(role: str, text: str, body: Body, calls: Mapping[int, AnsweredCall]) -> Body:
    """As `unpack`, from the columns of the row, of which `body` becomes the message."""
    if RESULT_OF in body and not text and body.keys() <= _PLACE:
        call = calls[body[RESULT_OF]]
        content = _content_of(call, _text_of(call.result, body.get(RESULT_SOURCE)))
        return {"role": role, "meta": {}, "name": None, "content": content}
    position, source = body.pop(RESULT_OF, None), body.pop(RESULT_SOURCE, None)
    if position is not None:
        call = calls[position]
        if not text:
            text = _text_of(call.result, source)
        if "content" not in body:
            body["content"] = _content_of(call)
    for part in body.setdefault("content", []):
        if "text" in part and part["text"] is None:
            part["text"] = text
            break
        answer = part.get("tool_call_result")
        if isinstance(answer, dict) and answer.get("result") is None:
            answer["result"] = text
            break
    body["role"] = role
    body.setdefault("meta", {})
    body.setdefault("name", None)
    return body


def answered_calls(branch: Branch, messages: Iterable[Message]) -> dict[int, AnsweredCall]:
    """The calls that hold a part of the messages, by their positions: one query, or none."""
    positions = [message.body[RESULT_OF] for message in messages if RESULT_OF in message.body]
    if not positions:
        return {}
    calls = ToolCall.objects.visible_on(branch, after=min(positions) - 1, upto=max(positions))
    if len(positions) <= FEW:
        calls = calls.filter(position__in=positions)
    rows = calls.values_list(*AnsweredCall._fields)
    return {call.position: call for call in map(AnsweredCall._make, rows)}


def fill_texts(branch: Branch, messages: list[Message]) -> list[Message]:
    """Give each message (in memory) its whole text and content, also where these are stored with the call."""
    calls = answered_calls(branch, messages)
    for message in messages:
        call = calls.get(message.body.get(RESULT_OF))
        if call is not None:
            message.text = message.text or text_in(call.result, message.body)
            message.body = {"content": _content_of(call), **message.body}
    return messages
