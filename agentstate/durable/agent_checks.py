"""Refuses, before anything runs, agents whose policies, breakpoints or ways of running cannot be honoured."""

import inspect
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from haystack.components.agents import Agent
from haystack.tools import Tool

from agentstate.articles import an
from agentstate.durable import long_term_tools
from agentstate.durable.breakpoints import Breakpoint
from agentstate.durable.call_ends import NotRedactable, check_redactable
from agentstate.durable.condition_values import why_never_met
from agentstate.durable.definition import finds_tools_at_run_time, tool_items, tools_of
from agentstate.durable.nested_agents import why_not_kept
from agentstate.durable.policy import Policies
from agentstate.durable.registry import AgentBuildFailed

if TYPE_CHECKING:
    from agentstate.durable.agent import WrappedAgent

# Parameters of `DurableAgent.run` that `Agent.run` does not have.
_OF_OUR_RUN = ("key", "break_point")


def check_agent(agent: object) -> None:
    """:raises TypeError: for what is no Haystack agent, with what to give instead."""
    if isinstance(agent, Agent):
        return
    if isinstance(agent, type):
        what, cure = (
            f"the class {agent.__name__}",
            " Give an instance of it." if issubclass(agent, Agent) else "",
        )
    elif isinstance(agent, str):
        what, cure = (
            f"the text {agent!r}",
            f" An agent that is registered: DurableAgent.of({agent!r}, journal).",
        )
    else:
        what = an(agent)
        cure = " Give the agent that it returns." if inspect.isroutine(agent) else ""
    raise TypeError(f"A durable agent is made of a Haystack Agent, not of {what}.{cure}")


def check_ways_to_run(agent: Agent, key: str, async_only: Sequence[str], wishes_async: bool | None) -> None:
    """:raises AgentBuildFailed: if the agent cannot be run in the way that its parts or its registration need."""
    if async_only and wishes_async is False:
        raise AgentBuildFailed(
            f"The agent {key!r} is registered with run_async=False and has parts that are async only: "
            f"{', '.join(async_only)}. Leave run_async out, or give each a synchronous function too."
        )
    if (async_only or wishes_async) and not inspect.iscoroutinefunction(agent.run_async):
        raise AgentBuildFailed(
            f"The agent {key!r} has to be run by run_async, which is not a coroutine function of "
            f"{type(agent).__name__}."
        )


def check_names(durable: "WrappedAgent") -> None:
    """:raises AgentBuildFailed: for a value that `DurableAgent.run` could not be given, having a parameter so named."""
    sockets = getattr(getattr(durable.agent, "__haystack_input__", None), "_sockets_dict", {})
    if taken := [name for name in _OF_OUR_RUN if name in sockets or name in durable.agent.state_schema]:
        raise AgentBuildFailed(
            f"The agent {durable.key!r} has a state value or variable {taken[0]!r}, which is a parameter of "
            "DurableAgent.run with another meaning, so it could not be given. Give it another name."
        )


def why_never_stopping(agent: Agent, breakpoints: Iterable[Breakpoint]) -> str:
    """Which breakpoints could never stop the agent, and what it has; "" if each could, as far as that is known yet."""
    by_tool = [breakpoint for breakpoint in breakpoints if breakpoint.tool]
    if not by_tool:
        return ""
    if why := _why_tools_are_lacking(agent, {breakpoint.tool for breakpoint in by_tool}):
        return why
    schemas = {tool.name: tool.parameters for tool in tools_of(agent, at_run_time=False)}
    reasons = (why_never_met(of_tool, schemas.get(of_tool.tool, {})) for of_tool in by_tool)
    return next((f"that never stop: {why}" for why in reasons if why), "")


def _why_tools_are_lacking(agent: Agent, named: Iterable[str]) -> str:
    """Which of the named tools the agent lacks and which it has; "" if it lacks none, as far as that is known yet."""
    if any(finds_tools_at_run_time(item) for item in tool_items(agent)):
        return ""
    lacking = sorted(set(named) - {tool.name for tool in tools_of(agent)})
    has = ", ".join(sorted(tool.name for tool in tools_of(agent))) or "none"
    return f"for tools that it lacks: {', '.join(lacking)}. It has: {has}." if lacking else ""


def check_policies(agent: Agent, key: str, policies: Policies) -> None:
    """
    :raises AgentBuildFailed: for a policy that names a tool the agent lacks, or an argument the tool lacks, as far as
        that is known before a run; and for a tool that would run an agent past a policy of its tools.
    """
    for tool in tools_of(agent, at_run_time=False):
        if why := why_not_kept(tool, policies, at_run_time=False):
            raise AgentBuildFailed(f"The agent {key!r} cannot be made durable. {why}")
    if why := _why_tools_are_lacking(agent, policies):
        raise AgentBuildFailed(f"The agent {key!r} has policies {why}")
    for tool in tools_of(agent, at_run_time=False):
        policy, properties = policies.get(tool.name), tool.parameters.get("properties")
        module = getattr(tool.function, "__module__", "")
        if policy is not None and policy.cache_ttl is not None and module == long_term_tools.__name__:
            raise AgentBuildFailed(
                f"The agent {key!r} has a policy with cache_ttl for {tool.name!r}: what one customer's memory holds "
                "would be given to others. Leave cache_ttl out."
            )
        if policy is not None and policy.redacted:
            _check_redactable(key, tool)
        if policy is None or not isinstance(properties, dict):
            continue
        # What a tool takes from the State is shown by a format, too; `@tool` leaves it out of the parameters.
        from_state = set(policy.formats or ()) & set((tool.inputs_from_state or {}).values())
        shown = sorted(policy.shown_arguments - (from_state - policy.summary_arguments))
        for what, names in {"identity": policy.identity or (), "summary or formats": shown}.items():
            if unknown := [name for name in names if name not in properties]:
                raise AgentBuildFailed(
                    f"The agent {key!r} has a policy for {tool.name!r} whose {what} names arguments that the tool "
                    f"lacks: {', '.join(unknown)}. It has: {', '.join(sorted(properties)) or 'none'}."
                )


def _check_redactable(key: str, tool: Tool) -> None:
    try:
        check_redactable(tool)
    except NotRedactable as error:
        raise AgentBuildFailed(f"The agent {key!r} cannot be made durable. {error}") from None
