"""What the desk is told of an agent: the parts of its definition as plain JSON, and what a run of it can be given.

The parts are what the fingerprint is taken of, arranged so that two definitions can be compared: a change of the
fingerprint is a change of a part. What looks like a credential is not part of it.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, MutableMapping, MutableSequence, Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from haystack.components.agents import Agent
from haystack.tools import Toolset
from pydantic import TypeAdapter

from agentstate.durable.credentials import without_credentials
from agentstate.durable.definition import (
    canonical_text,
    definition_text,
    finds_tools_at_run_time,
    model_name,
    tool_items,
    tools_of,
)
from agentstate.durable.described import described
from agentstate.durable.inputs import required_variables
from agentstate.durable.state.encoding import encode_lossy

Json = Any
_JSON_TYPES = (
    *(str, int, float, bool, None, NoneType, list, dict, Any, object),
    *(Collection, Iterable, Mapping, MutableMapping, MutableSequence, Sequence),
)
_PROMPTS = {"system_prompt": "system", "user_prompt": "user"}


def definition_parts(agent: Agent) -> dict[str, Json]:
    """``{"model": {...}, "prompts": {...}, "tools": {name: {...}}, "settings": {...}}``, as plain JSON.

    ``tools_pending`` is True where a toolset has not listed its tools yet: more than these may be the agent's.
    """
    try:
        options, tools = _options_and_tools(json.loads(definition_text(agent)))
    except Exception:  # `to_dict` of a class of the user's own may return anything
        options, tools = _options_and_tools(json.loads(canonical_text(described(agent))))
    for tool in tools_of(agent):
        tools.setdefault(tool.name, {}).update(description=tool.description, parameters=tool.parameters)
    generator = options.pop("chat_generator", None) or {}
    inner = getattr(agent.chat_generator, "chat_generator", agent.chat_generator)
    prompts = {name: getattr(agent, option, None) or "" for option, name in _PROMPTS.items()}
    parts = {
        "model": {
            "name": model_name(agent),
            "generator": generator.get("type") or type(inner).__qualname__,
            **(generator.get("init_parameters") or {}),
        },
        "prompts": prompts,
        "tools": tools,
        "settings": {name: value for name, value in options.items() if name not in _PROMPTS},
        "tools_pending": lists_tools_later(agent),
    }
    plain: dict[str, Json] = encode_lossy(without_credentials(json.loads(json.dumps(parts, default=str))))[0]
    return plain


def run_inputs(agent: Agent) -> dict[str, Json]:
    """What a run can be given beside its messages.

    ``{"prompt": whether it may begin without a message, "values": [{"name", "required", "type", "schema"}]}``; a
    value's ``schema`` is a JSON schema, or None where its type has none.
    """
    required = set(required_variables(agent))
    sockets = getattr(getattr(agent, "__haystack_input__", None), "_sockets_dict", {})
    state = {name: config for name, config in (agent.state_schema or {}).items() if name != "messages"}
    variables = [name for name in sockets if name not in state and not _is_of_every_agent(name, agent)]
    values = [
        {"name": name, "required": name in required, "type": "text", "schema": {}} for name in variables
    ]
    values += [
        {
            "name": name,
            "required": False,
            "type": _type_name(config["type"]),
            "schema": _schema(config["type"]),
        }
        for name, config in state.items()
    ]
    plain: dict[str, Json] = encode_lossy({"prompt": agent.user_prompt is not None, "values": values})[0]
    return plain


def lists_tools_later(agent: Agent) -> bool:
    """Whether a toolset of the agent lists its tools only once it is warmed up, and is not."""
    return any(
        finds_tools_at_run_time(item) and isinstance(item, Toolset) and not item.get_selectable_tools()
        for item in tool_items(agent)
    )


def _options_and_tools(definition: Json) -> tuple[dict[str, Json], dict[str, dict[str, Json]]]:
    options = dict(definition.get("init_parameters") or {})
    return options, dict(_by_name(options.pop("tools", None)))


def _by_name(items: Json) -> Iterator[tuple[str, dict[str, Json]]]:
    """The written tools by name; of a toolset those that it lists, and the toolset itself by its type."""
    for item in [items] if isinstance(items, dict) else items or []:
        data = dict(item.get("data") or {})
        if "name" in data:
            yield data.pop("name"), {"type": item.get("type"), **data}
            continue
        yield from _by_name(data.pop("tools", None))
        if data:
            yield str(item.get("type")), data


def _is_of_every_agent(name: str, agent: Agent) -> bool:
    return name in getattr(agent, "_run_method_params", ()) or name in (
        "messages", "streaming_callback", "generation_kwargs", "tools", "hook_context",
    )  # fmt: skip


def _type_name(kind: Any) -> str:
    return kind.__name__ if type(kind) is type else str(kind).replace("typing.", "")


def _schema(kind: Any) -> Json:
    """The JSON schema of a type whose values a person can type as JSON; None for any other.

    A set or a `Decimal` has a schema too, but what is read from JSON is a list or a text.
    """
    if not _is_of_json(kind):
        return None
    try:
        schema = TypeAdapter(kind).json_schema()
    except Exception:  # a type that pydantic does not know
        return None
    text = json.dumps(schema)
    # An object of Haystack is not built from what a person types: stored data names no types.
    return None if any(word in text for word in ('"$ref"', '"format"', '"properties"')) else schema


def _is_of_json(kind: Any) -> bool:
    """Whether all values of the type that can be written as JSON are of that type again when they are read."""
    origin = get_origin(kind)
    if origin is None:
        return kind in _JSON_TYPES
    if origin is Literal:
        return True
    if origin is Annotated:
        return _is_of_json(get_args(kind)[0])
    return origin in (*_JSON_TYPES, Union, UnionType) and all(map(_is_of_json, get_args(kind)))
