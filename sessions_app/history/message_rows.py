"""Converts messages to rows and back, without storing any text twice.

A row's ``text`` holds the message's text (or the tool's result as the model saw it), ``body`` the rest of
`ChatMessage.to_dict()`. Where the tool call holds that text already, as its result or as one value of it, the message
holds the call's position instead, under `RESULT_OF`, and the name of the value under `RESULT_SOURCE`.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from django.db import connection
from django.db.models import QuerySet, TextField
from django.db.models.functions import Cast

from agentstate.names import TYPE_TAG
from sessions_app.models import Branch, Message, ToolCall

Body = dict[str, Any]
RESULT_OF = "result_of"
RESULT_SOURCE = "result_source"
# So that a long history is not one text in memory.
TEXTS_AT_ONCE = 1_000


def pack(body: Body, results: Mapping[str, tuple[int, Any]] | None = None) -> tuple[str, str, Body]:
    """``(role, text, rest)`` of a message.

    :param results: By the id of a call, its position and the result that is stored with it.
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
            place = _place(result["result"], (results or {}).get(call_id or ""))
            text = "" if place else result["result"]
            rest |= place
            result["result"] = None
            break
    for key, empty in (("meta", {}), ("name", None)):
        if rest.get(key) == empty:
            rest.pop(key, None)
    return role, text, rest


def _place(text: str, stored: tuple[int, Any] | None) -> Body:
    """Where the text is stored already, as a part of a message's body; empty where it is not."""
    if stored is None:
        return {}
    position, result = stored
    if result == text:
        return {RESULT_OF: position}
    source = next((name for name, value in _values(result).items() if value == text), None)
    return {} if source is None else {RESULT_OF: position, RESULT_SOURCE: source}


def _values(result: Any) -> Mapping[str, Any]:
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
    return str(result if source is None else _values(result)[source])


def unpack(message: Message, results: Mapping[int, Any] | None = None) -> Body:
    """The whole ``ChatMessage.to_dict()`` again.

    :param results: By the position of a call, its result: as `results_of` returns them.
    """
    content = [
        {key: dict(value) if isinstance(value, dict) else value for key, value in part.items()}
        for part in message.body.get("content", ())
    ]
    return complete(message.role, message.text, {**message.body, "content": content}, results or {})


def complete(role: str, text: str, body: Body, results: Mapping[int, Any]) -> Body:
    """As `unpack`, from the columns of the row, of which `body` becomes the message."""
    position, source = body.pop(RESULT_OF, None), body.pop(RESULT_SOURCE, None)
    if position is not None and not text:
        text = _text_of(results[position], source)
    for part in body["content"]:
        if "text" in part and part["text"] is None:
            part["text"] = text
            break
        result = part.get("tool_call_result")
        if isinstance(result, dict) and result.get("result") is None:
            result["result"] = text
            break
    body["role"] = role
    body.setdefault("meta", {})
    body.setdefault("name", None)
    return body


def results_of(branch: Branch, messages: Iterable[Message]) -> dict[int, Any]:
    """The results that are stored with the calls of the messages, by the call's position: one query, or none."""
    return results_for(branch, [message.body for message in messages])


def results_for(branch: Branch, bodies: Iterable[Body]) -> dict[int, Any]:
    """As `results_of`, from the bodies of the rows."""
    positions = [body[RESULT_OF] for body in bodies if RESULT_OF in body]
    if not positions:
        return {}
    calls = ToolCall.objects.visible_on(branch, after=min(positions) - 1, upto=max(positions))
    rows = fetched(calls.values_list("position", as_text("result")))
    values = parsed([text or "null" for _, text in rows])
    return dict(zip([position for position, _ in rows], values, strict=True))


def fetched(rows: QuerySet[Any, tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """The rows of texts and numbers, as the driver returns them: the ORM adds as much time to many as they take."""
    sql, parameters = rows.query.sql_with_params()
    with connection.cursor() as cursor:
        cursor.execute(sql, parameters)
        return list(cursor.fetchall())


def as_text(column: str) -> Cast:
    """A column of JSON as its text, to be given to `parsed`."""
    return Cast(column, TextField())


def parsed(texts: Sequence[str]) -> Iterator[Any]:
    """The values of many JSON texts, read as a few long ones, which takes two thirds of the time."""
    for start in range(0, len(texts), TEXTS_AT_ONCE):
        yield from json.loads(f"[{','.join(texts[start : start + TEXTS_AT_ONCE])}]")


def fill_texts(branch: Branch, messages: list[Message]) -> list[Message]:
    """Give each message (in memory) its whole text, also where it is stored with the call."""
    results = results_of(branch, messages)
    for message in messages:
        position = message.body.get(RESULT_OF)
        if position in results and not message.text:
            message.text = text_in(results[position], message.body)
    return messages
