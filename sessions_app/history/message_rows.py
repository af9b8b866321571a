"""Converts messages to rows and back, without storing any text twice.

A row's ``text`` holds the message's text (or the tool's result as the model saw it), ``body`` the rest of
`ChatMessage.to_dict()`. A tool's result that is a plain string is stored with the tool call already: the message then
holds the call's position instead, under `RESULT_OF`.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from sessions_app.models import Branch, Message, ToolCall

Body = dict[str, Any]
RESULT_OF = "result_of"


def pack(body: Body, results: Mapping[str, tuple[int, str]] | None = None) -> tuple[str, str, Body]:
    """``(role, text, rest)`` of a message.

    :param results: By the id of a call, its position and the string result that is stored with it.
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
        result = part.get("tool_call_result")
        if isinstance(result, dict) and isinstance(result.get("result"), str):
            part["tool_call_result"] = result = dict(result)
            call_id = (result.get("origin") or {}).get("id")
            stored = (results or {}).get(call_id or "")
            if stored is not None and stored[1] == result["result"]:
                rest[RESULT_OF] = stored[0]
            else:
                text = result["result"]
            result["result"] = None
            break
    for key, empty in (("meta", {}), ("name", None)):
        if rest.get(key) == empty:
            rest.pop(key, None)
    return role, text, rest


def unpack(message: Message, results: Mapping[int, Any] | None = None) -> Body:
    """The whole ``ChatMessage.to_dict()`` again.

    :param results: By the position of a call, its result: as `results_of` returns them.
    """
    rest = dict(message.body)
    position = rest.pop(RESULT_OF, None)
    text = message.text if position is None or message.text else str((results or {})[position])
    content = [dict(part) for part in rest.get("content", ())]
    for part in content:
        if "text" in part and part["text"] is None:
            part["text"] = text
            break
        result = part.get("tool_call_result")
        if isinstance(result, dict) and result.get("result") is None:
            part["tool_call_result"] = {**result, "result": text}
            break
    return {"role": message.role, "meta": rest.get("meta", {}), "name": rest.get("name"), "content": content}


def results_of(branch: Branch, messages: Iterable[Message]) -> dict[int, Any]:
    """The results that are stored with the calls of the messages, by the call's position: one query, or none."""
    positions = [message.body[RESULT_OF] for message in messages if RESULT_OF in message.body]
    if not positions:
        return {}
    calls = ToolCall.objects.visible_on(branch, after=min(positions) - 1, upto=max(positions))
    return dict(calls.values_list("position", "result"))


def fill_texts(branch: Branch, messages: list[Message]) -> list[Message]:
    """Give each message (in memory) its whole text, also where it is stored with the call."""
    results = results_of(branch, messages)
    for message in messages:
        position = message.body.get(RESULT_OF)
        if position is not None and not message.text:
            message.text = str(results.get(position, ""))
    return messages
