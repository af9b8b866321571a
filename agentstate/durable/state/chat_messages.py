"""A `ChatMessage` as plain JSON and back, in the form of its own `to_dict` and `from_dict`.

A conversation has thousands of messages, and almost all of them are made of texts, calls and results that are plain
JSON already. Those are read from the fields of Haystack's dataclasses, and built by setting them, which is what
`to_dict` and `from_dict` do at several times the cost. Whatever else a message holds goes through these two, and so
does everything where a version of Haystack has other dataclasses than this module knows.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from haystack.dataclasses import ChatMessage, ChatRole, TextContent, ToolCall, ToolCallResult

from agentstate.durable.records import StoredMessage, UnreadMessage
from agentstate.durable.state.encoding import Json, clean_text, decode, encode_lossy, is_flat

_MESSAGE = ("_role", "_content", "_name", "_meta")
_TEXT = ("text",)
_CALL = ("tool_name", "arguments", "id", "extra")
_RESULT = ("result", "origin", "error")
_ROLES = {role.value: role for role in ChatRole}
_BODY_KEYS = {"role", "meta", "name", "content"}
_CALL_KEYS, _RESULT_KEYS = set(_CALL), set(_RESULT)


def _has_only(cls: Any, names: tuple[str, ...]) -> bool:
    """Whether an object of the dataclass is these fields and nothing else."""
    return (
        tuple(field.name for field in dataclasses.fields(cls)) == names
        and not hasattr(cls, "__post_init__")
        and not hasattr(cls, "__slots__")
    )


_IS_KNOWN = all(
    _has_only(cls, names)
    for cls, names in (
        (ChatMessage, _MESSAGE),
        (TextContent, _TEXT),
        (ToolCall, _CALL),
        (ToolCallResult, _RESULT),
    )
)


# What the objects of a message take beside its texts.
BYTES_OF_MESSAGE = 1_500


class _OtherForm(Exception):
    """The message, or a part of it, is none of those that this module builds by itself."""


def message_body(message: ChatMessage) -> dict[str, Json]:
    """`ChatMessage.to_dict()` in a form that can be stored: what is not JSON in it becomes text."""
    return encode_message(message)[0]


def encode_message(message: ChatMessage) -> tuple[dict[str, Json], bool]:
    """The body of the message as `message_body` returns it, and whether it is the message unchanged."""
    if _IS_KNOWN and type(message) is ChatMessage:
        try:
            return _body(message), True
        except _OtherForm:
            pass
    plain = message.to_dict()
    body, _ = encode_lossy(plain)
    assert isinstance(body, dict)
    return body, _is_same(body, plain)


def message_from(body: Mapping[str, Json], *, is_plain: bool = False) -> ChatMessage:
    """
    :param is_plain: Nothing in the body is tagged, and it is nobody else's: the message takes its parts as they are.
    """
    data = body if is_plain else decode(dict(body))
    if _IS_KNOWN and data.keys() == _BODY_KEYS and type(data["content"]) is list:
        try:
            return _built(data)
        except (_OtherForm, LookupError, TypeError, ValueError, AttributeError):
            pass  # from_dict knows more forms, and says what is wrong with one that it does not know
    return ChatMessage.from_dict(dict(data))


def with_calls(message: ChatMessage, calls: Iterable[ToolCall]) -> ChatMessage:
    """The message with these tool calls in the places of its own, which are as many; all else of it stays."""
    replaced = iter(calls)
    content = [next(replaced) if isinstance(part, ToolCall) else part for part in message._content]
    return ChatMessage(_role=message.role, _content=content, _name=message.name, _meta=message.meta)


def as_message(stored: StoredMessage | UnreadMessage) -> ChatMessage:
    return message_from(stored.body, is_plain=stored.is_plain)


# To plain JSON


def _body(message: ChatMessage) -> dict[str, Json]:
    """:raises _OtherForm: unless the message can be stored as it is."""
    fields = vars(message)
    if type(fields["_role"]) is not ChatRole:
        raise _OtherForm
    return {
        "role": fields["_role"]._value_,
        "meta": _unchanged(fields["_meta"]),
        "name": _text(fields["_name"]),
        "content": [_part(part) for part in fields["_content"]],
    }


def _part(part: Any) -> dict[str, Json]:
    if type(part) is ToolCall:
        return {"tool_call": _call(part)}
    if type(part) is TextContent:
        return {"text": _text(part.text)}
    if (
        type(part) is ToolCallResult
        and type(part.result) is str
        and type(part.origin) is ToolCall
        and type(part.error) is bool
    ):
        result = {"result": _text(part.result), "origin": _call(part.origin), "error": part.error}
        return {"tool_call_result": result}
    raise _OtherForm


def _call(call: ToolCall) -> dict[str, Json]:
    return {
        "tool_name": _text(call.tool_name),
        "arguments": _unchanged(call.arguments),
        "id": _text(call.id),
        "extra": _unchanged(call.extra),
    }


def _text(text: Any) -> str | None:
    if text is None or (type(text) is str and clean_text(text) == text):
        return text
    raise _OtherForm


def _unchanged(value: Any) -> Json:
    """A copy of the value, which may change in place."""
    if value is None:
        return None
    if type(value) is not dict:
        raise _OtherForm
    if is_flat(value):
        return {**value}
    data, _ = encode_lossy(value)
    if not _is_same(data, value):
        raise _OtherForm
    return data


def _is_same(stored: Json, given: Any) -> bool:
    """Whether the values are equal and of the same types: an `Enum` that is a text is equal to the text."""
    if type(stored) is not type(given):
        return False
    if type(stored) is dict:
        return (
            stored.keys() == given.keys()
            and all(type(key) is str for key in given)
            and all(_is_same(value, given[key]) for key, value in stored.items())
        )
    if type(stored) is list:
        return len(stored) == len(given) and all(map(_is_same, stored, given))
    return bool(stored == given)


# And back


def _built(data: Mapping[str, Json]) -> ChatMessage:
    message = object.__new__(ChatMessage)
    vars(message).update(
        _role=_ROLES[data["role"]],
        _content=[_built_part(part) for part in data["content"]],
        _name=data["name"],
        _meta=data["meta"] or {},
    )
    return message


def _built_part(part: Mapping[str, Json]) -> TextContent | ToolCall | ToolCallResult:
    ((name, value),) = part.items()
    if name == "tool_call":
        return _built_call(value)
    if name == "text":
        text = object.__new__(TextContent)
        vars(text)["text"] = value
        return text
    if name == "tool_call_result" and value.keys() == _RESULT_KEYS and type(value["result"]) is str:
        result = object.__new__(ToolCallResult)
        vars(result).update(result=value["result"], origin=_built_call(value["origin"]), error=value["error"])
        return result
    raise _OtherForm


def _built_call(data: Mapping[str, Json]) -> ToolCall:
    if data.keys() != _CALL_KEYS:
        raise _OtherForm
    call = object.__new__(ToolCall)
    vars(call).update(data)
    return call
