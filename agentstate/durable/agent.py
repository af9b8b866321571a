"""Builds durable agents from registrations or from any Haystack agent.

Whatever fails while an agent is built or described is a problem of that agent alone.
"""

import copy
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from haystack.components.agents import Agent
from haystack.hooks.human_in_the_loop import ConfirmationHook

from agentstate.articles import an, with_article
from agentstate.durable import tool_threads
from agentstate.durable.agent_checks import check_agent, check_policies, check_ways_to_run, why_never_stopping
from agentstate.durable.approvals import ApprovalHook
from agentstate.durable.breakpoints import Breakpoint
from agentstate.durable.confirmations import without_blocking
from agentstate.durable.definition import (
    async_only_parts,
    describe_tool,
    fingerprint,
    model_name,
    repeatable_tools,
    tools_of,
)
from agentstate.durable.description import definition_parts, lists_tools_later, run_inputs
from agentstate.durable.failures import describe as describe_error
from agentstate.durable.guards import HooksOfPoint
from agentstate.durable.hooks import (
    CheckPendingCalls,
    CommitStepStart,
    CommitTurnEnd,
    PlanAddedCalls,
    RecordRedactedResults,
    RestoreCheckpoint,
    own_hook,
    run_of_users,
)
from agentstate.durable.interruptions import contained, raised_by
from agentstate.durable.model import ReplayChatGenerator
from agentstate.durable.nested_agents import tools_inside
from agentstate.durable.policy import DEFAULT, Policies, ToolPolicy, checked_policies
from agentstate.durable.registry import (
    AgentBuildFailed,
    Registration,
    describe_code_error,
    registration_of,
)
from agentstate.durable.semantic_cache import SemanticCache
from agentstate.durable.state.encoding import clean_text
from agentstate.durable.streaming import takes_callback
from agentstate.durable.wrapped_methods import put_around


@dataclass(frozen=True, slots=True)
class WrappedAgent:
    """An agent wrapped for durable runs. It holds no data of a run, so one serves any number of runs at once.

    :param original: The agent that was given, of which the definition is.
    :param definition: The fingerprint of the agent's definition.
    :param has_own_key: `key` stands for this agent, being given or that of its registration, and not for any agent.
    :param may_defer_checkpoints: The checkpoint of a step may be committed together with the model's reply, since
        no hook of the user's runs between the two.
    :param async_only: The parts that only `run_async` can use, named for people.
    :param runs_async: Workers run it by `run_async`.
    :param semantic_cache: The policy of its registration; `breakpoints` are those of the registration, too.
    """

    agent: Agent
    original: Agent
    key: str
    policies: Policies
    definition: str
    may_defer_checkpoints: bool = False
    may_start_calls: bool = False
    async_only: tuple[str, ...] = ()
    runs_async: bool = False
    semantic_cache: SemanticCache | None = None
    breakpoints: tuple[Breakpoint, ...] = ()
    has_own_key: bool = False


@dataclass(frozen=True, slots=True)
class Description:
    """Metadata of an agent for the desk. `problem` says why it cannot be built; the rest is empty then.

    :param tools_pending: A toolset lists its tools only once it is warmed up.
    :param parts: See `agentstate.durable.description.definition_parts`; for `inputs`, `run_inputs`.
    :param options: How workers run it: see `run_options`.
    :param policies: Those that hold for its tools, also for tools that a toolset lists later.
    """

    definition: str = ""
    model: str = ""
    tools: list[dict[str, Any]] = field(default_factory=list)
    tools_pending: bool = False
    inputs: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    parts: dict[str, Any] = field(default_factory=dict)
    policies: Policies = field(default_factory=dict)
    problem: str = ""


_built: dict[str, tuple[Registration, WrappedAgent]] = {}
_lock = threading.RLock()


def build(registration: Registration) -> WrappedAgent:
    """The registered agent, made durable: built at its first use in this process and kept.

    :raises AgentBuildFailed: if the factory raises, returns no Agent, or a policy names a tool that the agent lacks, or
        an argument that the tool lacks.
    """
    with _lock:
        cached = _built.get(registration.key)
        if cached is not None and cached[0] is registration:
            return cached[1]
        agent = _call_factory(registration)
        try:
            with contained():
                durable = make_durable(agent, key=registration.key, policies=registration.policies)
        except AgentBuildFailed:
            raise
        except Exception as error:
            # An agent's own code may fail in any way; the other agents must still work.
            raise AgentBuildFailed(
                f"The agent {registration.key!r} cannot be made durable: {describe_error(raised_by(error))}"
            ) from error
        _built[registration.key] = (registration, durable)
        return durable


def describe(registration: Registration) -> Description:
    """The agent's metadata; never raises for an agent that cannot be built or described."""
    try:
        with contained():
            durable = build(registration)
            tools = [
                describe_tool(tool, durable.policies.get(tool.name, DEFAULT), tools_inside(tool))
                for tool in tools_of(durable.agent)
            ]
            return Description(
                definition=durable.definition,
                model=model_name(durable.agent),
                tools=tools,
                tools_pending=lists_tools_later(durable.agent),
                inputs=run_inputs(durable.agent),
                options=run_options(durable),
                parts=definition_parts(durable.original),
                policies=durable.policies,
            )
    except AgentBuildFailed as error:
        return Description(problem=clean_text(str(error)))
    except Exception as error:  # its toolsets may fail in any way
        why = f"The agent {registration.key!r} cannot be described: {describe_error(raised_by(error))}"
        return Description(problem=clean_text(why))


def run_options(durable: WrappedAgent) -> dict[str, Any]:
    """How workers run the agent, as plain JSON: whether by `run_async`, its semantic cache, and its breakpoints."""
    cache, breakpoints = durable.semantic_cache, durable.breakpoints
    return {
        "run_async": durable.runs_async,
        **({"semantic_cache": cache.to_dict()} if cache else {}),
        **({"breakpoints": [breakpoint.to_dict() for breakpoint in breakpoints]} if breakpoints else {}),
    }


def make_durable(agent: Agent, *, key: str = "", policies: Policies | None = None) -> WrappedAgent:
    """Wrap any Haystack agent: for use with `agentstate.durable.run` and a journal.

    An agent that a registered factory has built has the key and the policies of its registration; `policies` add to
    them.

    The agent given is not changed, except that a generator inside its hooks is wrapped, which does nothing
    outside a durable run.

    :raises TypeError: for what is no Haystack agent, or policies that are none.
    :raises AgentBuildFailed: for a policy or a breakpoint that names a tool the agent lacks, for a policy that names
        an argument the tool lacks; for a tool that would run an agent past the approval that a policy asks for; and for
        an agent that neither way of running it can use.
    """
    check_agent(agent)
    tool_threads.install()
    registered = registration_of(agent)
    has_own_key = bool(key or registered)
    key = key or (registered.key if registered else "agent")
    policies = {**(registered.policies if registered else {}), **checked_policies(policies)}
    breakpoints = registered.breakpoints if registered else ()
    check_policies(agent, key, policies)
    if why := why_never_stopping(agent, breakpoints):
        raise AgentBuildFailed(f"The agent {key!r} has breakpoints {why}")
    async_only = tuple(async_only_parts(agent))
    wishes_async = registered.run_async if registered else None
    check_ways_to_run(agent, key, async_only, wishes_async)
    if registered and registered.stream and not takes_callback(agent.chat_generator):
        raise AgentBuildFailed(
            f"The agent {key!r} is registered with stream=True, and its {type(agent.chat_generator).__name__} takes no "
            "streaming_callback. Leave stream out."
        )
    definition = fingerprint(agent)
    policies = {name: ToolPolicy(idempotent=True) for name in repeatable_tools(agent)} | policies
    hooks: dict[Any, list[Any]] = {point: list(of_point) for point, of_point in agent.hooks.items()}
    for hook in [hook for of_point in hooks.values() for hook in of_point]:
        _journal_generators(hook, key)
        if not callable(getattr(hook, "run_async", None)):
            put_around(hook, "run", run_of_users)
    # A copy, since `Agent.clone` needs every option to be a parameter of the constructor, which a subclass may lack.
    wrapped = copy.copy(agent)
    streams = registered is not None and registered.stream
    wrapped.chat_generator = ReplayChatGenerator(agent.chat_generator, streams=streams)
    wrapped.hooks = _durable_hooks(hooks, redacts=any(policy.redacted for policy in policies.values()))
    wrapped.to_dict = agent.to_dict  # type: ignore[method-assign]
    return WrappedAgent(
        agent=wrapped,
        original=agent,
        key=key,
        policies=policies,
        definition=definition,
        may_defer_checkpoints=not hooks.get("before_llm") and not hooks.get("after_tool"),
        may_start_calls=not hooks.get("before_tool"),
        async_only=async_only,
        runs_async=bool(async_only) if wishes_async is None else wishes_async,
        semantic_cache=registered.semantic_cache if registered else None,
        breakpoints=breakpoints,
        has_own_key=has_own_key,
    )


def _call_factory(registration: Registration) -> Agent:
    try:
        with contained():
            agent = registration.factory()
    except Exception as error:
        raise AgentBuildFailed(
            f"The factory of the agent {registration.key!r} failed: {describe_code_error(raised_by(error))}"
        ) from error
    if not isinstance(agent, Agent):
        raise AgentBuildFailed(
            f"The factory of the agent {registration.key!r} returned {an(agent)}, not a Haystack Agent."
        )
    return agent


def _durable_hooks(hooks: dict[Any, list[Any]], redacts: bool) -> dict[Any, list[Any]]:
    """The user's hooks by point, with those around them that make the agent's loop durable.

    :param redacts: Some tool's results are redacted.
    """
    before_llm = hooks.get("before_llm", [])
    return {
        **hooks,
        "before_run": HooksOfPoint(
            "before_run",
            before=[own_hook("before_run", RestoreCheckpoint())],
            users=hooks.get("before_run", []),
        ),
        "before_llm": HooksOfPoint(
            "before_llm",
            before=[own_hook("before_llm", CommitStepStart(context_may_change=bool(before_llm)))],
            users=before_llm,
        ),
        "before_tool": [
            *map(_before_tool, hooks.get("before_tool", [])),
            own_hook("before_tool", PlanAddedCalls(), ApprovalHook(), CheckPendingCalls()),
        ],
        "after_tool": [
            *hooks.get("after_tool", []),
            *([own_hook("after_tool", RecordRedactedResults())] if redacts else []),
        ],
        "after_run": HooksOfPoint(
            "after_run",
            users=hooks.get("after_run", []),
            after=[own_hook("after_run", CommitTurnEnd())],
        ),
    }


def _before_tool(hook: Any) -> Any:
    """The user's hook. One that asks for confirmation first records the calls that it asks about."""
    if not isinstance(hook, ConfirmationHook):
        return hook
    return without_blocking(hook, own_hook("before_tool", PlanAddedCalls()))


def _journal_generators(hook: Any, key: str) -> None:
    """Journal the replies of a generator that the hook itself uses, such as a summariser's.

    :raises AgentBuildFailed: if the generator cannot be replaced: its replies would be requested again after a restart.
    """
    for number, holder in enumerate((hook, getattr(hook, "compactor", None))):
        inner = getattr(holder, "chat_generator", None)
        if holder is None or inner is None or isinstance(inner, ReplayChatGenerator):
            continue
        kind = type(holder).__name__
        wrapped = ReplayChatGenerator(inner, name=f"{kind}:{number}")
        # A read-only property mostly returns an attribute; that of a frozen dataclass is set as its constructor does.
        attributes = [name for name, value in getattr(holder, "__dict__", {}).items() if value is inner]
        for name in dict.fromkeys(["chat_generator", *attributes]):
            with suppress(AttributeError, TypeError):
                object.__setattr__(holder, name, wrapped)
        if holder.chat_generator is not wrapped:
            raise AgentBuildFailed(
                f"The agent {key!r} has {with_article(kind)} whose chat_generator cannot be replaced, so its replies "
                "could not be recorded. Keep the generator in an attribute of the object."
            )
