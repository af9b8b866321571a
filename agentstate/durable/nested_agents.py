"""Agents that run inside a tool of another agent, and the policies that hold for their tools.

A nested agent runs inside one call of the outer agent: neither its model's replies nor its calls are recorded, and
nobody can be asked before one of them. So a policy that asks for approval is kept by the tool that runs the agent, or
that tool is refused.
"""

from collections.abc import Iterator
from typing import Any

from haystack.components.agents import Agent
from haystack.core.pipeline.base import PipelineBase
from haystack.tools import Tool

from agentstate.durable.definition import tools_of
from agentstate.durable.policy import DEFAULT, Policies, ToolPolicy
from agentstate.durable.registry import registration_of


class PolicyNotKept(Exception):
    """A tool would run an agent past the approval that a policy asks for. The message says what to do."""


def tools_inside(tool: Tool) -> list[str] | None:
    """The names of all tools of the agents that run inside the tool, as far as they are known yet; None without any."""
    nested = list(_all_agents_in(tool))
    return sorted({inner.name for agent, _ in nested for inner in tools_of(agent)}) if nested else None


def doubt_note(tool: Tool | None) -> str:
    """What a person who decides about a call in doubt has to know of an agent inside the tool; "" without one."""
    names = tools_inside(tool) if tool is not None else None
    if tool is None or not names:
        return ""
    return (
        f" An agent runs inside {tool.name}: each of its tools may have taken effect, possibly several times: "
        f"{', '.join(names)}."
    )


def check_kept(tool: Tool, policies: Policies) -> None:
    """
    :param policies: Those of the agent that has the tool.
    :raises PolicyNotKept: if the tool would run an agent past the approval that a policy asks for.
    """
    if why := why_not_kept(tool, policies):
        raise PolicyNotKept(why)


def why_not_kept(tool: Tool, policies: Policies, *, at_run_time: bool = True) -> str:
    """Which policy for a tool inside this one nobody would keep, and what to do; "" if all are kept.

    :param at_run_time: Ask also the toolsets inside that find their tools at run time.

    A policy with `approval` is kept by `approval` for the whole call; one with an effect, which asks only where that
    effect would be repeated, by any policy that does so for the whole call.
    """
    outer = policies.get(tool.name, DEFAULT)
    for name, policy in _policies_inside(tool, policies, at_run_time):
        if policy.approval and not outer.approval:
            problem, cure = "needs approval", "approval=True"
        elif _names_effect(policy) and not _names_effect(outer):
            problem, cure = "has a policy that names an effect", "an effect or approval=True"
        elif _names_effect(policy) and outer.idempotent and not policy.idempotent:
            return (
                f"The tool {tool.name!r} is declared idempotent and runs an agent with the tool {name!r}, which is not "
                f"and has an effect. Leave idempotent out of the policy of {tool.name!r}."
            )
        else:
            continue
        return (
            f"The tool {tool.name!r} runs an agent with the tool {name!r}, which {problem}. An agent in a tool runs "
            f"within one call, so nobody would be asked. Give {name!r} to the outer agent itself instead, or give "
            f"{tool.name!r} a policy with {cure}, which holds for the whole call."
        )
    return ""


def _policies_inside(tool: Tool, policies: Policies, at_run_time: bool) -> Iterator[tuple[str, ToolPolicy]]:
    """What the registrations of the agents inside say, and what the agents around them say for tools of that name."""
    for agent, around in _all_agents_in(tool, at_run_time):
        yield from _own_policies(agent).items()
        names = {inner.name for inner in tools_of(agent, at_run_time=at_run_time)}
        for outer in (policies, *map(_own_policies, around)):
            yield from ((name, policy) for name, policy in outer.items() if name in names)


def _own_policies(agent: Agent) -> Policies:
    registration = registration_of(agent)
    return registration.policies if registration is not None else {}


def _names_effect(policy: ToolPolicy) -> bool:
    return policy.effect_scope is not None and policy.effect_scope.whole_tool


def _all_agents_in(
    tool: Tool, at_run_time: bool = True, around: tuple[Agent, ...] = ()
) -> Iterator[tuple[Agent, tuple[Agent, ...]]]:
    """Each agent inside the tool with those between it and the tool. An agent inside itself is left out."""
    for agent in _agents_in(tool):
        if any(agent is outer for outer in around):
            continue
        yield agent, around
        for inner in tools_of(agent, at_run_time=at_run_time):
            yield from _all_agents_in(inner, at_run_time, (*around, agent))


def _agents_in(tool: Tool) -> Iterator[Agent]:
    """The agents that the tool itself runs: as its component, in its pipeline, or by a method of theirs."""
    functions = (tool.function, tool.async_function)
    parts = [
        getattr(tool, "_component", None),
        *(getattr(function, "__self__", None) for function in functions),
    ]
    seen: set[int] = set()
    for part in parts:
        if part is None:
            continue
        for agent in _agents_of(part):
            if id(agent) not in seen:
                seen.add(id(agent))
                yield agent


def _agents_of(part: Any) -> Iterator[Agent]:
    if isinstance(part, Agent):
        yield part
        return
    pipeline = getattr(part, "pipeline", part)
    if isinstance(pipeline, PipelineBase):
        for _, component in pipeline.walk():
            yield from _agents_of(component)
