"""Describes an agent whose `to_dict` fails: all of its parts, and of each what can be told without that method.

The description has the form of `Agent.to_dict`; a part whose own `to_dict` works is described by it. Functions stand
in it by their qualified names, and objects that cannot be described by their class. The values that a closure, a
`functools.partial` or the object of a bound method holds are left out, and so are credentials: they may change while
the agent runs, or must not be shown. The description is the same in every process, unless a part is constructed with
other values in each.
"""

import functools
import inspect
import json
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import PurePath
from types import ModuleType
from typing import Any, get_origin

from haystack.components.agents import Agent
from haystack.core.pipeline.base import PipelineBase
from haystack.core.serialization import component_to_dict, generate_qualified_class_name
from haystack.tools import SearchableToolset, Tool, Toolset
from haystack.utils import Secret
from haystack.utils.callable_serialization import serialize_callable
from haystack.utils.type_serialization import serialize_type

from agentstate.durable.credentials import without_credentials
from agentstate.durable.model import ReplayChatGenerator

_OF_A_TOOL = (
    *("name", "description", "parameters"),
    *("inputs_from_state", "outputs_to_state", "outputs_to_string"),
)
# A property may return a new object each time, which has the same property, or several such.
_DEEPEST = 5
_ANY_NUMBER = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_MISSING = object()


def described(agent: Agent) -> dict[str, Any]:
    description: dict[str, Any] = without_credentials(_Describer().agent(agent), texts_only=True)
    return description


def is_lazy(toolset: type[Toolset]) -> bool:
    """Whether toolsets of the class find tools when they are warmed up or iterated."""
    return (
        any(hasattr(toolset, name) for name in ("warm_up", "warm_up_async"))
        or toolset.__iter__ is not Toolset.__iter__
        or toolset.get_selectable_tools is not Toolset.get_selectable_tools
    )


@dataclass(frozen=True)
class _Describer:
    """
    :param around: The objects in which the described one stands: an agent may be inside itself.
    :param within: The lists and mappings in which it stands, which may be inside themselves, too.
    """

    around: tuple[object, ...] = ()
    within: tuple[object, ...] = ()

    def agent(self, agent: Agent) -> dict[str, Any]:
        """With the parameters of `Agent`, and those of a subclass that are attributes of it."""
        inside = _Describer((*self.around, agent))
        hooks = {point: [inside.component(hook) for hook in hooks] for point, hooks in agent.hooks.items()}
        of_agent = {
            "chat_generator": inside.component(agent.chat_generator),
            "tools": inside.value(agent.tools),
            "state_schema": {name: inside._state_key(key) for name, key in agent.state_schema.items()},
            "hooks": hooks or None,
        }
        parameters = dict(inside._parameters(agent, without=of_agent))
        return {"type": _class_name(agent), "init_parameters": {**parameters, **of_agent}}

    def component(self, part: Any) -> dict[str, Any]:
        """A component or a hook: serialised, or else by its class and the parameters that are attributes of it."""
        if isinstance(part, ReplayChatGenerator):  # in a hook of an agent that was made durable
            part = part.chat_generator
        if any(part is outer for outer in self.around) or len(self.around) > _DEEPEST:
            return {"type": _class_name(part)}
        serialised = _serialised(lambda: component_to_dict(part, "part"))
        if serialised is not None:
            return serialised
        if isinstance(part, Agent):
            return self.agent(part)
        inside = _Describer((*self.around, part))
        if isinstance(part, PipelineBase):
            return inside._pipeline(part)
        parameters = dict(inside._parameters(part))
        if isinstance(model := _attribute(part, "model"), str):
            parameters["model"] = model
        return {"type": _class_name(part), "init_parameters": parameters}

    def value(self, value: Any) -> Any:
        if isinstance(value, Enum):
            return f"{_class_name(value)}.{value.name}"
        if value is None or isinstance(value, str | int | float):
            return value
        if isinstance(value, PurePath):
            return str(value)
        if isinstance(value, Mapping | list | tuple | set | frozenset):
            return self._items(value)
        if isinstance(value, Tool):
            return self._tool(value)
        if isinstance(value, Toolset):
            return self._toolset(value)
        if isinstance(value, type) or get_origin(value) is not None:
            return _type_name(value)
        if isinstance(value, functools.partial) or inspect.isroutine(value):
            return self._function(value)
        if isinstance(value, Secret):
            return _serialised(value.to_dict) or {"type": _class_name(value)}
        is_serialisable = _attribute(value, "to_dict") is not _MISSING
        return self.component(value) if is_serialisable else {"type": _class_name(value)}

    def _items(self, value: Mapping[Any, Any] | Collection[Any]) -> Any:
        if any(value is outer for outer in self.within):
            return {"type": _class_name(value)}
        inside = _Describer(self.around, (*self.within, value))
        if isinstance(value, Mapping):
            return {str(inside.value(key)): inside.value(item) for key, item in value.items()}
        items = [inside.value(item) for item in value]
        if isinstance(value, set | frozenset):
            items.sort(key=lambda item: json.dumps(item, sort_keys=True))
        return items

    def _parameters(self, part: Any, without: Mapping[str, Any] = {}) -> Iterator[tuple[str, Any]]:
        try:
            parameters = inspect.signature(part.__init__).parameters.values()
        except (TypeError, ValueError):
            return
        for parameter in parameters:
            if parameter.name in without or parameter.kind in _ANY_NUMBER:
                continue
            value = _attribute(part, parameter.name)
            if value is not _MISSING:
                yield parameter.name, self.value(value)

    def _state_key(self, key: Mapping[str, Any]) -> dict[str, Any]:
        handler = {"handler": self.value(key["handler"])} if key.get("handler") else {}
        return {"type": _type_name(key["type"]), **handler}

    def _pipeline(self, pipeline: PipelineBase) -> dict[str, Any]:
        edges = pipeline.graph.edges.data()
        return {
            "type": _class_name(pipeline),
            "components": {name: self.component(part) for name, part in pipeline.walk()},
            "connections": [
                f"{sender}.{edge['from_socket'].name} -> {receiver}.{edge['to_socket'].name}"
                for sender, receiver, edge in edges
            ],
        }

    def _tool(self, tool: Tool) -> dict[str, Any]:
        if (serialised := _serialised(tool.to_dict)) is not None:
            return serialised
        data = {name: self.value(getattr(tool, name)) for name in _OF_A_TOOL}
        # The function of such a tool is Haystack's.
        runs = _attribute(tool, "_pipeline", "_component")
        if runs is not _MISSING:
            return {"type": _class_name(tool), "data": {**data, "component": self.component(runs)}}
        functions = {name: self.value(getattr(tool, name)) for name in ("function", "async_function")}
        return {"type": _class_name(tool), "data": {**data, **functions}}

    def _toolset(self, toolset: Toolset) -> dict[str, Any]:
        """Without the tools that it finds: whether they are there already, and can be serialised, is by chance."""
        finds_tools = is_lazy(type(toolset))
        if finds_tools and type(toolset).to_dict is Toolset.to_dict:
            return {"type": _class_name(toolset), "data": {}}
        if (serialised := _serialised(toolset.to_dict)) is not None:
            return serialised
        data = dict(self._parameters(toolset, without={"tools": None}))
        if isinstance(toolset, SearchableToolset):
            data["catalog"] = self.value(_attribute(toolset, "_raw_catalog"))
        if not finds_tools:
            data["tools"] = [self._tool(tool) for tool in toolset.tools]
        return {"type": _class_name(toolset), "data": data}

    def _function(self, function: Callable[..., Any]) -> Any:
        if isinstance(function, functools.partial):
            return {"partial": self.value(function.func)}
        try:
            return serialize_callable(function)
        except Exception:  # a method, a lambda, or a function inside a function
            name = f"{getattr(function, '__module__', None) or ''}.{getattr(function, '__qualname__', '')}"
        owner = getattr(function, "__self__", None)
        if owner is None or isinstance(owner, type | ModuleType):
            return name
        of = (
            self.component(owner) if isinstance(owner, Agent | PipelineBase) else {"type": _class_name(owner)}
        )
        return {"method": name, "of": of}


def _serialised(to_dict: Callable[[], Any]) -> dict[str, Any] | None:
    """None where there is no such form: the user's own code may fail in any way, or return anything."""
    try:
        serialised = to_dict()
    except Exception:
        return None
    return serialised if isinstance(serialised, dict) else None


def _attribute(part: Any, *names: str) -> Any:
    """The first of the attributes that the part has, else `_MISSING`. A property may fail in any way."""
    for name in names:
        try:
            return getattr(part, name)
        except Exception:  # noqa: S112
            continue
    return _MISSING


def _type_name(kind: Any) -> str:
    try:
        return serialize_type(kind)
    except Exception:
        return str(kind)


def _class_name(part: object) -> str:
    return generate_qualified_class_name(type(part))
