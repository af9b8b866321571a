"""Builds durable agents from registrations, and describes them for the dashboard.

The fingerprint of an agent's definition is taken before the agent is wrapped: the wrapping is not part of it.
"""

import json
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, get_type_hints

from haystack.components.agents import Agent
from haystack.hooks.human_in_the_loop import ConfirmationHook
from haystack.tools import Tool, Toolset
from pydantic import TypeAdapter

from agentstate.durable.approvals import ApprovalHook, with_journal_strategies
from agentstate.durable.hooks import (
    CheckPendingCalls,
    CommitPreparedContext,
    CommitStepStart,
    CommitTurnEnd,
    CommitTurnStart,
    GuardedHook,
    PlanAddedCalls,
    RestoreCheckpoint,
)
from agentstate.durable.model import ReplayChatGenerator
from agentstate.durable.policy import Policies
from agentstate.durable.registry import AgentBuildFailed, Registration


@dataclass(frozen=True, slots=True)
class DurableAgent:
    """An agent wrapped for durable runs. It holds no data of a run, so one serves any number of runs at once.

    :param definition: The fingerprint of the agent's definition.
    :param may_defer_checkpoints: The checkpoint of a step may be committed together with the model's reply, since
        no hook of the user's runs between the two.
    """

    agent: Agent
    key: str
    policies: Policies
    definition: str
    may_defer_checkpoints: bool = False


@dataclass(frozen=True, slots=True)
class Description:
    """Metadata of an agent for the dashboard. `problem` says why it cannot be built; the rest is empty then."""

    definition: str = ""
    model: str = ""
    tools: list[dict[str, Any]] = field(default_factory=list)
    problem: str = ""


_built: dict[str, tuple[Registration, DurableAgent]] = {}
_lock = threading.RLock()


def build(registration: Registration) -> DurableAgent:
    """The registered agent, made durable: built at its first use in this process and kept.

    :raises AgentBuildFailed: if the factory raises, returns no Agent, or a policy names a tool that the agent lacks, or
        an argument that the tool lacks.
    """
    with _lock:
        cached = _built.get(registration.key)
        if cached is not None and cached[0] is registration:
            return cached[1]
        agent = _call_factory(registration)
        durable = make_durable(agent, key=registration.key, policies=registration.policies)
        _built[registration.key] = (registration, durable)
        return durable


def describe(registration: Registration) -> Description:
    """The agent's metadata; never raises for an agent that cannot be built."""
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
            **({} if (output := _output(tool)) is None else {"output": output}),
        }
        for tool in _tools(durable.agent)
    ]
    return Description(definition=durable.definition, model=_model(durable.agent), tools=tools)


def make_durable(agent: Agent, *, key: str = "agent", policies: Policies | None = None) -> DurableAgent:
    """Wrap any Haystack agent: for use with `agentstate.durable.run` and a journal.

    The agent given is not changed, except that a generator inside its hooks is wrapped, which does nothing
    outside a durable run.

    :raises AgentBuildFailed: for a policy that names a tool the agent lacks, or an argument the tool lacks.
    """
    policies = dict(policies or {})
    _check_policies(agent, key, policies)
    _check_identities(agent, key, policies)
    definition = fingerprint(agent)
    hooks = {point: list(of_point) for point, of_point in agent.hooks.items()}
    for hook in [hook for of_point in hooks.values() for hook in of_point]:
        _journal_generators(hook)
    before_llm = [GuardedHook(hook, "before_llm") for hook in hooks.get("before_llm", [])]
    wrapped = agent.clone(
        chat_generator=ReplayChatGenerator(agent.chat_generator),
        hooks={
            **hooks,
            "before_run": [
                RestoreCheckpoint(),
                *(GuardedHook(hook, "before_run") for hook in hooks.get("before_run", [])),
                CommitTurnStart(),
            ],
            "before_llm": [
                CommitStepStart(),
                *before_llm,
                *([CommitPreparedContext()] if before_llm else []),
            ],
            "before_tool": [
                *_before_tool(hooks.get("before_tool", [])),
                PlanAddedCalls(),
                ApprovalHook(),
                CheckPendingCalls(),
            ],
            "after_run": [
                *(GuardedHook(hook, "after_run") for hook in hooks.get("after_run", [])),
                CommitTurnEnd(),
            ],
        },
    )
    return DurableAgent(
        agent=wrapped,
        key=key,
        policies=policies,
        definition=definition,
        may_defer_checkpoints=not hooks.get("before_llm") and not hooks.get("after_tool"),
    )


def fingerprint(agent: Agent) -> str:
    """SHA-256 over the agent's definition: its `to_dict`, or, where that fails, the parts of it that have a text."""
    try:
        definition: Any = agent.to_dict()
        text = json.dumps(definition, sort_keys=True, default=str)
    except Exception:
        definition = {
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
        text = json.dumps(definition, sort_keys=True, default=str)
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
    if any(_finds_tools_at_run_time(item) for item in _tool_items(agent)):
        return  # not all of its tools are known yet
    lacking = sorted(set(policies) - {tool.name for tool in _tools(agent)})
    if lacking:
        has = ", ".join(sorted(tool.name for tool in _tools(agent))) or "none"
        raise AgentBuildFailed(
            f"The agent {key!r} has policies for tools that it lacks: {', '.join(lacking)}. It has: {has}."
        )


def _check_identities(agent: Agent, key: str, policies: Policies) -> None:
    """The arguments that identify an effect must be in the tool's schema, where that is known before a run."""
    for tool in _tools(agent, at_run_time=False):
        policy, properties = policies.get(tool.name), tool.parameters.get("properties")
        if policy is None or policy.identity is None or not isinstance(properties, dict):
            continue
        if unknown := [name for name in policy.identity if name not in properties]:
            raise AgentBuildFailed(
                f"The agent {key!r} has a policy for {tool.name!r} whose identity names arguments that the tool lacks: "
                f"{', '.join(unknown)}. It has: {', '.join(sorted(properties)) or 'none'}."
            )


def _before_tool(hooks: Iterable[Any]) -> Iterator[Any]:
    """The user's hooks. One that asks for confirmation is preceded by the record of the calls that it asks about."""
    for hook in hooks:
        if isinstance(hook, ConfirmationHook):
            yield PlanAddedCalls()
        yield with_journal_strategies(hook)


def _journal_generators(hook: Any) -> None:
    """Journal the replies of a generator that the hook itself uses, such as a summariser's."""
    for number, holder in enumerate((hook, getattr(hook, "compactor", None))):
        inner = getattr(holder, "chat_generator", None)
        if holder is not None and inner is not None and not isinstance(inner, ReplayChatGenerator):
            holder.chat_generator = ReplayChatGenerator(inner, name=f"{type(holder).__name__}:{number}")


def _tool_items(agent: Agent) -> list[Tool | Toolset]:
    return [agent.tools] if isinstance(agent.tools, Toolset) else list(agent.tools)


def _finds_tools_at_run_time(item: Tool | Toolset) -> bool:
    return isinstance(item, Toolset) and type(item) is not Toolset


def _tools(agent: Agent, *, at_run_time: bool = True) -> Iterable[Tool]:
    """The agent's tools, with or without those of toolsets that find their tools at run time."""
    for item in _tool_items(agent):
        if not at_run_time and _finds_tools_at_run_time(item):
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


def _model(agent: Agent) -> str:
    generator = agent.chat_generator
    if isinstance(generator, ReplayChatGenerator):
        generator = generator.chat_generator
    return str(getattr(generator, "model", "") or type(generator).__name__)
