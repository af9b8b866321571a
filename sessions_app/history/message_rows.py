"""Messages to rows and back, without storing any text twice.

A row's ``text`` holds the words (or the tool's result as the model saw it), ``body`` the rest of
`ChatMessage.to_dict()`. Where a tool's result is a plain string it lies in the ledger already: the message then
names the call's position instead.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from sessions_app.models import Branch, Message, ToolCall

Body = dict[str, Any]
RESULT_OF = "result_of"


def pack(body: Body, results: Mapping[str, tuple[int, str]] | None = None) -> tuple[str, str, Body]:
    """``(role, text, rest)`` of a message. ``results`` maps a call's id to its position and its string result."""
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
    for key, none in (("meta", {}), ("name", None)):
        if rest.get(key) == none:
            rest.pop(key, None)
    return role, text, rest


def unpack(message: Message, results: Mapping[int, Any] | None = None) -> Body:
    """The whole of ``ChatMessage.to_dict()`` again. ``results`` maps a call's position to its result."""
    rest = dict(message.body)
    place = rest.pop(RESULT_OF, None)
    text = message.text if place is None or message.text else str((results or {})[place])
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
    """The results that the messages left in the ledger, by the call's position: one query, or none."""
    places = [message.body[RESULT_OF] for message in messages if RESULT_OF in message.body]
    if not places:
        return {}
    calls = ToolCall.objects.visible_on(branch, after=min(places) - 1, upto=max(places))
    return dict(calls.values_list("position", "result"))


def fill_texts(branch: Branch, messages: list[Message]) -> list[Message]:
    """Give each message its whole text (in memory), also where the ledger holds it."""
    results = results_of(branch, messages)
    for message in messages:
        place = message.body.get(RESULT_OF)
        if place is not None and not message.text:
            message.text = str(results.get(place, ""))
    return messages
