"""What a turn is given beside its messages: encoded for the journal, and checked before the turn begins.

A journal outlives the process, so tools are stored by name. Callbacks and contexts of hooks are never stored.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from haystack.components.agents import Agent
from haystack.dataclasses import ChatMessage
from haystack.tools import Tool, Toolset, warm_up_tools

from agentstate.articles import an
from agentstate.durable.definition import tool_items, tools_of
from agentstate.durable.state.chat_messages import message_body
from agentstate.durable.state.encoding import NotStorable, encode
from agentstate.durable.streaming import STRUCTURED

Json = Any
NAMES = ("state", "generation_kwargs", "tools")
# Arguments of `Agent.run` in Haystack 2, which Haystack 3 ignores, with what to do instead.
_GONE = {
    "system_prompt": "give the agent a system_prompt with variables, and their values to the run",
    "snapshot": "go back to a checkpoint by resume(at=...)",
}


def encoded(inputs: Mapping[str, Any]) -> dict[str, Json]:
    """The inputs as `Snapshot.inputs`. Their values are plain data: a key ``$type`` in one is a key like others.

    :param inputs: Of `NAMES`: the state values by key, what the generator is called with, and the names of the tools.
    :raises NotStorable: for a value that cannot be stored.
    :raises TypeError: for tools that are not named.
    :raises ValueError: for another name than those of `NAMES`.
    """
    if unknown := sorted(set(inputs) - set(NAMES)):
        raise ValueError(f"A run has no inputs {', '.join(unknown)}; there are {', '.join(NAMES)}.")
    record: dict[str, Json] = {}
    if state := inputs.get("state"):
        record["state"] = {name: encode(value, f"the value of {name!r}") for name, value in state.items()}
    if generation_kwargs := inputs.get("generation_kwargs"):
        for name in STRUCTURED:
            _check_structured(name, generation_kwargs.get(name))
        record["generation_kwargs"] = encode(dict(generation_kwargs), "generation_kwargs")
    if (tools := inputs.get("tools")) is not None:
        if isinstance(tools, str) or not all(isinstance(name, str) for name in tools):
            raise TypeError(
                "The inputs of a journal name tools by a list of their names: objects cannot be stored."
            )
        record["tools"] = list(tools)  # an empty list is none of the agent's tools
    return record


def _check_structured(name: str, given: Any) -> None:
    """:raises NotStorable: for a class, which a plain run takes: stored data names no code."""
    if isinstance(given, type):
        raise NotStorable(
            f"generation_kwargs[{name!r}]",
            given,
            cure='Give its JSON schema, {"type": "json_schema", "json_schema": {"name": ..., "schema": '
            f"{given.__name__}.model_json_schema()}}}}, or give the class to the chat generator itself, in its own "
            "generation_kwargs.",
        )


def encoded_changes(agent: Agent, changes: Mapping[str, Any]) -> tuple[dict[str, Json], list[Json] | None]:
    """Changes of a checkpoint: values of the state, and under ``messages`` the conversation; None leaves it.

    :raises NotStorable: for a value that cannot be stored.
    :raises ValueError: for a key that the agent's state does not have, or messages that are no list of `ChatMessage`.
    """
    state = {name: value for name, value in changes.items() if name != "messages"}
    if unknown := sorted(set(state) - set(agent.state_schema)):
        raise ValueError(f"The agent's state has no {', '.join(unknown)}.")
    messages = changes.get("messages")
    if messages is not None and not (
        isinstance(messages, list | tuple) and all(isinstance(message, ChatMessage) for message in messages)
    ):
        raise ValueError(
            "The messages of a change must be a list of ChatMessage: the conversation that the model sees."
        )
    bodies = None if messages is None else [message_body(message) for message in messages]
    return {name: encode(value, f"the value of {name!r}") for name, value in state.items()}, bodies


def tool_names(agent: Agent, tools: Tool | Toolset | Iterable[Any] | None) -> list[str] | None:
    """The names of the tools that a run is given, as objects or by name; None for all that the agent has.

    :raises ValueError: for a tool that is not one of the agent's: a run could not find it again after a restart.
    """
    if tools is None:
        return None
    if not isinstance(tools, Iterable | Tool):
        raise TypeError(
            f"The tools of a run are a list of names or of the agent's own tools, not {an(tools)}."
        )
    items = list(tools) if not isinstance(tools, Tool | Toolset | str) else [tools]
    toolsets = [item for item in tool_items(agent) if isinstance(item, Toolset)]
    own_toolsets = [toolset for toolset in toolsets if any(item is toolset for item in items)]
    warm_up_tools(own_toolsets)  # some list their tools only then
    own = {tool.name: tool for tool in tools_of(agent)}
    names: list[str] = []
    for item in items:
        if isinstance(item, Toolset) and item in own_toolsets:
            names += [tool.name for tool in item.get_selectable_tools()]
            continue
        objects = list(item) if type(item) is Toolset else [item]
        for tool in objects:
            name = tool if isinstance(tool, str) else getattr(tool, "name", "")
            if not isinstance(tool, str) and own.get(name) is not tool:
                what = f"the tool {name!r}" if isinstance(tool, Tool) else an(tool)
                raise ValueError(
                    f"A durable run cannot use {what}, which is not one of the agent's own tools: it could not find "
                    "it again after a restart. Give it to the agent, and choose the tools of a run by their names."
                )
            names.append(name)
    searched = any(isinstance(item, Toolset) and type(item) is not Toolset for item in tool_items(agent))
    if not searched and (unknown := sorted(set(names) - set(own))):
        has = ", ".join(sorted(own)) or "none"
        raise ValueError(f"The agent has no tools {', '.join(unknown)}. It has: {has}.")
    return names


def required_variables(agent: Agent) -> list[str]:
    """The variables of the agent's prompts without which it cannot run."""
    return [name for name, socket in _sockets(agent).items() if socket.is_mandatory and name != "messages"]


def check_variables(agent: Agent, given: Iterable[str]) -> None:
    """:raises ValueError: naming the variables of the agent's prompts for which no value is given, or a value that
    Haystack 3 would ignore, although Haystack 2 did not.
    """
    for name in set(given) & set(_GONE) - set(_sockets(agent)) - set(agent.state_schema):
        raise ValueError(f"Haystack 3 has no {name} for a run: {_GONE[name]}.")
    if missing := [name for name in required_variables(agent) if name not in set(given)]:
        raise ValueError(
            f"The agent's prompts need values for: {', '.join(missing)}. Give them to the run by name."
        )


def _sockets(agent: Agent) -> Mapping[str, Any]:
    sockets: Mapping[str, Any] = getattr(getattr(agent, "__haystack_input__", None), "_sockets_dict", {})
    return sockets
