"""What an agent is: the fingerprint of its definition, its tools and its model, as the desk shows them.

The fingerprint is taken of the user's agent: what makes it durable is not part of it.
"""

import inspect
import json
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from typing import Any, get_type_hints

from haystack.components.agents import Agent
from haystack.core.serialization import generate_qualified_class_name
from haystack.hooks import FunctionHook
from haystack.tools import SkillToolset, Tool, Toolset
from pydantic import TypeAdapter

from agentstate.durable import long_term_tools, memory
from agentstate.durable.described import described, is_lazy
from agentstate.durable.found_tools import search_tool_name
from agentstate.durable.model import ReplayChatGenerator
from agentstate.durable.policy import ToolPolicy
from agentstate.durable.state.encoding import encode_lossy

_OUR_TOOLS = {memory.__name__, long_term_tools.__name__}
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_STORE_IN_MEMORY = "haystack.document_stores.in_memory.document_store.InMemoryDocumentStore"
# Haystack gives such a store an index like this where it is given none.
_RANDOM_INDEX = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_TEMPORARY_FOLDERS = {tempfile.gettempdir(), os.path.realpath(tempfile.gettempdir())}
# Such a path inside a text ends at a blank, a quote or a bracket. `/var/tmp/x` does not hold the path `/tmp/x`.
_TEMPORARY_PATH = re.compile(
    rf"(?<![\w./-])(?:{'|'.join(map(re.escape, sorted(_TEMPORARY_FOLDERS)))})"
    rf"{re.escape(os.sep)}[^\s\"'`<>()\[\]{{}},;]+"
)


def fingerprint(agent: Agent) -> str:
    """SHA-256 over the agent's definition: its `to_dict`, or, where that fails, what can be described of its parts.

    It is the same in every process, before and after the agent is warmed up. What differs from process to process is
    left out: addresses in memory, paths of temporary files, the random index of a document store in memory, and the
    tools that a toolset finds when it is warmed up.
    """
    return sha256(definition_text(agent).encode()).hexdigest()


def definition_text(agent: Agent) -> str:
    """The definition of which the fingerprint is taken, as JSON."""
    try:
        return canonical_text(agent.to_dict())
    except Exception:  # a part cannot be serialised, such as a closure
        return canonical_text(described(agent))


def canonical_text(definition: Any) -> str:
    listing_found_tools = {
        generate_qualified_class_name(kind)
        for kind in _subclasses(Toolset)
        if is_lazy(kind) and kind.to_dict is Toolset.to_dict
    }

    def canonical(value: Any) -> Any:
        if isinstance(value, Mapping):
            items = {key: canonical(item) for key, item in value.items()}
            if value.get("type") in listing_found_tools and isinstance(value.get("data"), Mapping):
                items["data"] = {name: item for name, item in items["data"].items() if name != "tools"}
            if value.get("type") == _STORE_IN_MEMORY and isinstance(value.get("init_parameters"), Mapping):
                parameters = items["init_parameters"]
                if _RANDOM_INDEX.fullmatch(str(parameters.get("index"))):
                    del parameters["index"]
            return items
        if isinstance(value, list | tuple):
            return [canonical(item) for item in value]
        if isinstance(value, set | frozenset):
            return sorted(
                (canonical(item) for item in value), key=lambda item: json.dumps(item, sort_keys=True)
            )
        if isinstance(value, str):
            return _without_what_differs(value)
        return value if value is None or isinstance(value, int | float) else _without_what_differs(str(value))

    return json.dumps(canonical(definition), sort_keys=True)


def _without_what_differs(text: str) -> str:
    """The text without what is another in each process: the path of a temporary file, and addresses in memory."""
    if any(text.startswith(f"{folder}{os.sep}") for folder in _TEMPORARY_FOLDERS):
        return "<temporary file>"
    return _ADDRESS.sub("", _TEMPORARY_PATH.sub("<temporary file>", text))


def _subclasses(kind: type[Toolset]) -> Iterator[type[Toolset]]:
    for subclass in kind.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)


def repeatable_tools(agent: Agent) -> set[str]:
    """The names of the tools that are known to be idempotent, being Haystack's or ours."""
    names = {search_tool_name(item) for item in tool_items(agent)}
    for item in tool_items(agent):
        if isinstance(item, SkillToolset):
            names.update(tool.name for tool in item)
        elif type(item) is Toolset or isinstance(item, Tool):
            tools = [item] if isinstance(item, Tool) else item.tools
            names.update(
                tool.name for tool in tools if getattr(tool.function, "__module__", "") in _OUR_TOOLS
            )
    return {name for name in names if name is not None}


def async_only_parts(agent: Agent) -> list[str]:
    """The parts that only `Agent.run_async` can use, named for people."""
    parts = []
    for tool in tools_of(agent, at_run_time=False):
        nested = getattr(tool, "_component", None)
        if tool.function is None and tool.async_function is not None:
            parts.append(f"the tool {tool.name!r}")
        elif isinstance(nested, Agent):
            parts += [f"{part} of the agent in the tool {tool.name!r}" for part in async_only_parts(nested)]
    if not hasattr(agent.chat_generator, "run"):
        parts.append(f"the chat generator {type(agent.chat_generator).__name__}")
    for point, hooks in agent.hooks.items():
        is_async = [isinstance(hook, FunctionHook) and hook.function is None for hook in hooks]
        parts += [f"a {point} hook"] * sum(is_async)
    if is_async_callback(agent.streaming_callback):
        parts.append("the streaming_callback")
    return parts


def is_async_callback(callback: Any) -> bool:
    """Whether only `run_async` can call it."""
    return inspect.iscoroutinefunction(callback) or inspect.iscoroutinefunction(type(callback).__call__)


def describe_tool(tool: Tool, policy: ToolPolicy, tools_inside: list[str] | None = None) -> dict[str, Any]:
    """As plain JSON that every database stores.

    :param tools_inside: The names of the tools of an agent that the tool runs; None if it runs none.
    """
    description = {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
        "policy": policy.to_dict(),
        "takes_state": _takes_state(tool),
        **({} if tools_inside is None else {"tools_inside": tools_inside}),
        **({} if (output := _output(tool)) is None else {"output": output}),
    }
    plain: dict[str, Any] = encode_lossy(json.loads(json.dumps(description, default=str)))[0]
    return plain


def tool_items(agent: Agent) -> list[Tool | Toolset]:
    return [agent.tools] if isinstance(agent.tools, Toolset) else list(agent.tools)


def finds_tools_at_run_time(item: Tool | Toolset) -> bool:
    return isinstance(item, Toolset) and type(item) is not Toolset


def output_names(agent: Agent) -> set[str]:
    """The outputs that the agent declares: an `LLM` does without the counters of steps and tool calls."""
    return set(getattr(getattr(agent, "__haystack_output__", None), "_sockets_dict", {}))


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
