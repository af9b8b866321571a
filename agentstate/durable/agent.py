"""From a registration to a durable agent, and to what the desk is told of it."""

import json
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from haystack.components.agents import Agent
from haystack.tools import Tool, Toolset

from agentstate.durable.approvals import ApprovalHook, on_the_desk
from agentstate.durable.hooks import Begin, Finish, Gate, Guarded, Register, Restore, Seal
from agentstate.durable.model import ReplayChatGenerator
from agentstate.durable.policy import Policies
from agentstate.durable.registry import AgentBuildFailed, Registration


@dataclass(frozen=True, slots=True)
class DurableAgent:
    """An agent wrapped for durable runs. It keeps no run's data, so one serves any number of runs at once."""

    agent: Agent
    key: str
    policies: Policies
    definition: str
    holds: bool = False
    """Whether a step's checkpoint may wait for the model's reply: no hook of the user's lies between the two."""


@dataclass(frozen=True, slots=True)
class Description:
    """What the desk shows of an agent. `problem` says why it cannot be built; the rest is empty then."""

    definition: str = ""
    model: str = ""
    tools: list[dict[str, Any]] = field(default_factory=list)
    problem: str = ""


_built: dict[str, tuple[Registration, DurableAgent]] = {}
_lock = threading.RLock()


def build(registration: Registration) -> DurableAgent:
    """The registered agent, made durable: built at its first use in this process and kept.

    :raises AgentBuildFailed: if the factory raises, returns no Agent, or a policy names a tool that the agent lacks.
    """
    with _lock:
        kept = _built.get(registration.key)
        if kept is None or kept[0] is not registration:
            agent = _call_factory(registration)
            kept = _built[registration.key] = (
                registration,
                make_durable(agent, key=registration.key, policies=registration.policies),
            )
        return kept[1]


def describe(registration: Registration) -> Description:
    """What there is to tell of the agent; never raises for an agent that is broken."""
    try:
        durable = build(registration)
    except AgentBuildFailed as error:
        return Description(problem=str(error))
    tools = [
        {
            "name": tool.name,
            "description": tool.description,
            "parameters": tool.parameters,
            "policy": registration.policy(tool.name).to_dict(),
            "takes_state": _takes_state(tool),
        }
        for tool in _tools(durable.agent)
    ]
    return Description(definition=durable.definition, model=_model(durable.agent), tools=tools)


def make_durable(agent: Agent, *, key: str = "agent", policies: Policies | None = None) -> DurableAgent:
    """Wrap any Haystack agent: for use with `agentstate.durable.run` and a journal.

    The agent given is not changed, except that a generator inside its hooks is wrapped, which does nothing
    outside a durable run.

    :raises AgentBuildFailed: for a policy that names a tool the agent lacks.
    """
    policies = dict(policies or {})
    _check_policies(agent, key, policies)
    definition = fingerprint(agent)
    hooks = {point: list(found) for point, found in agent.hooks.items()}
    for hook in [hook for found in hooks.values() for hook in found]:
        _journal_generators(hook)
    before_llm = [Guarded(hook, "before_llm") for hook in hooks.get("before_llm", [])]
    wrapped = agent.clone(
        chat_generator=ReplayChatGenerator(agent.chat_generator),
        hooks={
            **hooks,
            "before_run": [
                Restore(),
                *(Guarded(hook, "before_run") for hook in hooks.get("before_run", [])),
                Begin(),
            ],
            "before_llm": [Gate(), *before_llm, *([Seal()] if before_llm else [])],
            "before_tool": [*map(on_the_desk, hooks.get("before_tool", [])), ApprovalHook(), Register()],
            "after_run": [*(Guarded(hook, "after_run") for hook in hooks.get("after_run", [])), Finish()],
        },
    )
    holds = not hooks.get("before_llm") and not hooks.get("after_tool")
    return DurableAgent(agent=wrapped, key=key, policies=policies, definition=definition, holds=holds)


def fingerprint(agent: Agent) -> str:
    """SHA-256 over the agent's definition: its `to_dict`, or what can be told of it where that fails."""
    try:
        told: Any = agent.to_dict()
        text = json.dumps(told, sort_keys=True, default=str)
    except Exception:
        told = {
            "generator": f"{type(agent.chat_generator).__module__}.{type(agent.chat_generator).__qualname__}",
            "model": _model(agent),
            "prompts": [agent.system_prompt, agent.user_prompt],
            "exit_conditions": agent.exit_conditions,
            "max_agent_steps": agent.max_agent_steps,
            "state": sorted(agent.state_schema),
            "tools": [[tool.name, tool.description, tool.parameters] for tool in _tools(agent)],
            "hooks": {
                point: [type(hook).__qualname__ for hook in hooks] for point, hooks in agent.hooks.items()
            },
        }
        text = json.dumps(told, sort_keys=True, default=str)
    return sha256(text.encode()).hexdigest()


def _call_factory(registration: Registration) -> Agent:
    try:
        agent = registration.factory()
    except Exception as error:
        raise AgentBuildFailed(
            f"The factory of the agent {registration.key!r} failed: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(agent, Agent):
        raise AgentBuildFailed(
            f"The factory of the agent {registration.key!r} returned a {type(agent).__name__}, not a Haystack Agent."
        )
    return agent


def _check_policies(agent: Agent, key: str, policies: Policies) -> None:
    items = [agent.tools] if isinstance(agent.tools, Toolset) else list(agent.tools)
    if any(isinstance(item, Toolset) and type(item) is not Toolset for item in items):
        return  # a toolset that finds its tools at run time: what it will have cannot be known here
    lacking = sorted(set(policies) - {tool.name for tool in _tools(agent)})
    if lacking:
        has = ", ".join(sorted(tool.name for tool in _tools(agent))) or "none"
        raise AgentBuildFailed(
            f"The agent {key!r} has policies for tools that it lacks: {', '.join(lacking)}. It has: {has}."
        )


def _journal_generators(hook: Any) -> None:
    """A hook that asks a model itself (a summariser, say) has those replies journaled too."""
    for number, holder in enumerate((hook, getattr(hook, "compactor", None))):
        inner = getattr(holder, "chat_generator", None)
        if holder is not None and inner is not None and not isinstance(inner, ReplayChatGenerator):
            holder.chat_generator = ReplayChatGenerator(inner, name=f"{type(holder).__name__}:{number}")


def _tools(agent: Agent) -> Iterable[Tool]:
    items = [agent.tools] if isinstance(agent.tools, Toolset) else list(agent.tools)
    for item in items:
        if isinstance(item, Toolset):
            yield from item.get_selectable_tools()
        else:
            yield item


def _takes_state(tool: Tool) -> bool:
    from haystack.components.agents.state import State

    target = tool.function or tool.async_function
    annotations = getattr(target, "__annotations__", {}) if target is not None else {}
    return any(kind is State or kind == "State" for kind in annotations.values())


def _model(agent: Agent) -> str:
    generator = agent.chat_generator
    if isinstance(generator, ReplayChatGenerator):
        generator = generator.chat_generator
    return str(getattr(generator, "model", "") or type(generator).__name__)
