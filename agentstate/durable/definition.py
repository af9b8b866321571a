"""What an agent is: the fingerprint of its definition, its tools and its model, as the dashboard shows them.

The fingerprint is taken of the user's agent: what makes it durable is not part of it.
"""

import json
from collections.abc import Iterable
from hashlib import sha256
from typing import Any, get_type_hints

from haystack.components.agents import Agent
from haystack.tools import Tool, Toolset
from pydantic import TypeAdapter

from agentstate.durable.model import ReplayChatGenerator
from agentstate.durable.registry import Registration
from agentstate.durable.state.encoding import encode_lossy


def fingerprint(agent: Agent) -> str:
    """SHA-256 over the agent's definition: its `to_dict`, or, where that fails, the parts of it that have a text."""
    try:
        definition: Any = agent.to_dict()
        text = json.dumps(definition, sort_keys=True, default=str)
    except Exception:
        definition = {
            "generator": f"{type(agent.chat_generator).__module__}.{type(agent.chat_generator).__qualname__}",
            "model": model_name(agent),
            "prompts": [agent.system_prompt, agent.user_prompt],
            "exit_conditions": agent.exit_conditions,
            "max_agent_steps": agent.max_agent_steps,
            "state": sorted(agent.state_schema),
            "tools": [[tool.name, tool.description, tool.parameters] for tool in tools_of(agent)],
            "hooks": {
                point: [type(hook).__qualname__ for hook in hooks] for point, hooks in agent.hooks.items()
            },
        }
        text = json.dumps(definition, sort_keys=True, default=str)
    return sha256(text.encode()).hexdigest()


def describe_tool(tool: Tool, registration: Registration) -> dict[str, Any]:
    """As plain JSON that every database stores."""
    description = {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
        "policy": registration.policy(tool.name).to_dict(),
        "takes_state": _takes_state(tool),
        **({} if (output := _output(tool)) is None else {"output": output}),
    }
    plain: dict[str, Any] = encode_lossy(json.loads(json.dumps(description, default=str)))[0]
    return plain


def tool_items(agent: Agent) -> list[Tool | Toolset]:
    return [agent.tools] if isinstance(agent.tools, Toolset) else list(agent.tools)


def finds_tools_at_run_time(item: Tool | Toolset) -> bool:
    return isinstance(item, Toolset) and type(item) is not Toolset


def tools_of(agent: Agent, *, at_run_time: bool = True) -> Iterable[Tool]:
    """The agent's tools, with or without those of toolsets that find their tools at run time."""
    for item in tool_items(agent):
        if not at_run_time and finds_tools_at_run_time(item):
            continue
        if isinstance(item, Toolset):
            yield from item.get_selectable_tools()
        else:
            yield item


def _takes_state(tool: Tool) -> bool:
    from haystack.components.agents.state import State

    target = tool.function or tool.async_function
    annotations = getattr(target, "__annotations__", {}) if target is not None else {}
    return any(kind is State or kind == "State" for kind in annotations.values())


def _output(tool: Tool) -> dict[str, Any] | None:
    """The JSON schema of what the tool's function says it returns; None unless that is plain JSON."""
    target = tool.function or tool.async_function
    try:
        returned = get_type_hints(target, include_extras=True)["return"]
        schema = TypeAdapter(returned).json_schema()
    except Exception:  # no annotation, one that cannot be resolved, or a type that is not JSON
        return None
    plain = schema and not any(word in json.dumps(schema) for word in ('"$ref"', '"format"'))
    return schema if plain else None


def model_name(agent: Agent) -> str:
    generator = agent.chat_generator
    if isinstance(generator, ReplayChatGenerator):
        generator = generator.chat_generator
    return str(getattr(generator, "model", "") or type(generator).__name__)
