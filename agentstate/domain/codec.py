"""An agent's state as versioned JSON, lossless both ways.

A document is `{"format": "agentstate", "version": N, "state": {...}}`. All old versions can be read: a change of the
shape raises `VERSION` and adds to `MIGRATIONS` a function that turns the previous version's `state` into the new one's.
A document that cannot be read in full is an error; nothing is dropped silently.
"""

import json
from collections.abc import Callable
from dataclasses import fields
from datetime import datetime
from typing import Any

from agentstate.articles import an
from agentstate.domain.frozen import Json, require, thaw
from agentstate.domain.messages import Message, ToolCall
from agentstate.domain.state import AgentState
from agentstate.domain.working_memory import WorkingMemory

FORMAT = "agentstate"
VERSION = 2
MIGRATIONS: dict[int, Callable[[dict[str, Json]], dict[str, Json]]] = {
    1: lambda state: {**state, "memory": {**state["memory"], "keyed_notes": {}}}
}
"""By version, the function that turns a `state` of that version into one of the next."""

_TIMES = {"timestamp", "created_at", "updated_at"}


class UnreadableState(ValueError):
    """A document that this version cannot read; the message says where and why."""


def encode_state(state: AgentState) -> str:
    """The state as one line of JSON."""
    document = {"format": FORMAT, "version": VERSION, "state": _plain(state)}
    return json.dumps(document, ensure_ascii=False, allow_nan=False)


def decode_state(text: str | bytes) -> AgentState:
    """The state that was encoded, equal in every field.

    :raises UnreadableState: if the text is damaged, is not a state, or was written by a newer version.
    """
    try:
        if isinstance(text, bytes):
            text = text.decode("utf-8", "surrogatepass")
        document = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise UnreadableState(f"This is not JSON: {error}.") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT or "state" not in document:
        raise UnreadableState(
            f'This is not an agent\'s state: it lacks "format": "{FORMAT}", or its "state".'
        )
    try:
        return _state(_upgrade(document["state"], document.get("version")))
    except UnreadableState:
        raise
    except (TypeError, ValueError, LookupError, OverflowError, RecursionError) as error:
        raise UnreadableState(f"The state is damaged: {error}") from error


def _upgrade(state: Json, version: Json) -> Json:
    if type(version) is not int or version < 1:
        raise UnreadableState(f"{version!r} is not a version: it is a number from 1.")
    if version > VERSION:
        raise UnreadableState(
            f"The state has version {version}, newer than {VERSION}, the newest that this AgentState reads. "
            "Update AgentState to read it."
        )
    for step in range(version, VERSION):
        state = MIGRATIONS[step](state)
    return state


def _plain(record: Any) -> Json:
    """A record of the domain as a dict of its fields, recursively."""
    return {field.name: _plain_value(getattr(record, field.name)) for field in fields(record)}


def _plain_value(value: Any) -> Json:
    if isinstance(value, Message | ToolCall | WorkingMemory):
        return _plain(value)
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, tuple):
        return [_plain_value(item) for item in value]
    return thaw(value)


def _state(data: Json) -> AgentState:
    values = _values(AgentState, data, "state")
    require(list, history=values["history"])
    values["history"] = [_message(item, f"history[{index}]") for index, item in enumerate(values["history"])]
    values["memory"] = _memory(values["memory"], "memory")
    return AgentState(**values)


def _memory(data: Json, path: str) -> WorkingMemory:
    values = _values(WorkingMemory, data, path)
    require(list, **{name: values[name] for name in values.keys() - {"current_goal", "keyed_notes"}})
    calls = enumerate(values["tool_calls"])
    values["tool_calls"] = [_tool_call(item, f"{path}.tool_calls[{index}]") for index, item in calls]
    return WorkingMemory(**values)


def _message(data: Json, path: str) -> Message:
    return Message(**_values(Message, data, path))


def _tool_call(data: Json, path: str) -> ToolCall:
    return ToolCall(**_values(ToolCall, data, path))


def _values(record: type, data: Json, path: str) -> dict[str, Json]:
    """The values of one record, with its times as `datetime`.

    :raises UnreadableState: unless the data has exactly the record's fields.
    """
    names = {field.name for field in fields(record)}
    if not isinstance(data, dict):
        raise UnreadableState(f"{path} is {an(data)}, not an object.")
    if data.keys() != names:
        wrong = ", ".join(sorted(names ^ data.keys()))
        raise UnreadableState(f"{path} does not have the fields of version {VERSION}: {wrong}.")
    return {name: datetime.fromisoformat(value) if name in _TIMES else value for name, value in data.items()}


def _no_constant(name: str) -> Json:
    raise ValueError(f"{name} is not a value of JSON")
