"""Publishes the agents that the workers can run, for processes that import neither agents nor Haystack.

Workers may register different agents, by intention or while they are replaced one by one. So a worker says with each
heartbeat which agents it has, and what they are in it (`AgentDefinition.beat_at`). A process that does not register an
agent withdraws it only if no worker that is online has it. A worker that has been taken for offline, because it or its
database stood still, publishes its agents again.

Only processes that run agents call this: it builds every registered agent, and so imports Haystack.
"""

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from functools import cache
from typing import TYPE_CHECKING

from django.conf import settings
from django.db import transaction
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.utils import timezone

from agentstate.durable.policy import DEFAULT
from agentstate.durable.registry import AgentError, AgentModuleMissing, Registration, is_part_of, registry
from sessions_app.models import (
    AgentDefinition,
    RegisteredAgent,
    Session,
    had_by_workers,
    online_since,
    policies_of,
)

if TYPE_CHECKING:
    from agentstate.durable.agent import Description, WrappedAgent

_NOT_REGISTERED = "It is no longer registered: add its module to AGENTSTATE_AGENTS."
_PUBLISHED = (
    *("title", "description", "model", "definition", "tools", "tools_pending", "inputs", "options"),
    *("module", "problem", "published_at"),
)
# The names of the tools that this process has published last of agents whose toolsets list them later.
_listed: dict[str, tuple[str, ...]] = {}
# Why agents that this process registers cannot run here, by their keys.
_broken: dict[str, str] = {}
# What this process, as a worker, has said that its agents are: their definitions by their keys.
_had: dict[str, str] = {}


def publish_agents(*, beat_at: datetime | None = None, restores: bool = False) -> list[str]:
    """Bring `RegisteredAgent` up to date with the registry.

    An agent that cannot be built is published with the problem, unless a worker that is online has it. One that is not
    registered here, nor had by such a worker, is deleted, unless it has sessions or a module cannot be imported; then
    its row stays, with the problem.

    :param beat_at: The time now, if this process is a worker, which has these agents from now on.
    :param restores: Leave what another worker has published as it is, where there is no problem with it.
    :returns: For each module of AGENTSTATE_AGENTS that cannot be imported, a sentence that says why.
    """
    from agentstate.durable.agent import Description, describe

    problems = load_agents()
    published = {row.key: row for row in RegisteredAgent.objects.all()}
    had = set(had_by_workers(beat_at or timezone.now()).values_list("agent", flat=True))
    rows, definitions = [], []
    _broken.clear()
    for registration in registry.all():
        # What a module has registered before it failed cannot run either.
        why, row = _problem_of(registration.module, problems), published.get(registration.key)
        description = Description(problem=why) if why else describe(registration)
        if description.problem:
            _broken[registration.key] = description.problem
            if row is not None and not row.problem and registration.key in had:
                continue  # it runs elsewhere: see `_withdraw`
        if why and row is not None:
            # Open requests are still shown by what it was.
            row.problem, row.published_at = why, timezone.now()
            rows.append(row)
            continue
        if row is None or row.problem or not restores:
            rows.append(_row(registration, description, row))
        if description.definition:
            definitions.append(_definition(registration.key, description, beat_at))
    # Those of a worker are published together with that it has them: see `_withdraw`.
    with transaction.atomic():
        RegisteredAgent.objects.bulk_create(
            rows, update_conflicts=True, unique_fields=["key"], update_fields=list(_PUBLISHED)
        )
        if beat_at is None:
            AgentDefinition.objects.bulk_create(definitions, ignore_conflicts=True)
        else:
            AgentDefinition.objects.bulk_create(
                definitions,
                update_conflicts=True,
                unique_fields=["agent", "definition"],
                update_fields=["beat_at"],
            )
    if beat_at is not None:
        _had.clear()
        _had.update({row.agent: row.definition for row in definitions})
    _withdraw(RegisteredAgent.objects.all(), problems, beat_at or timezone.now())
    return list(problems.values())


def renew_agents(now: datetime) -> bool:
    """Say that this worker still has the agents that it has published.

    :returns: False if another process may have withdrawn one of them: no worker has said so for too long.
    """
    own = Q(pk__in=[])
    for key, definition in _had.items():
        own |= Q(agent=key, definition=definition)
    # Sooner than another process would take this one for offline: this statement may have to wait.
    since = online_since(now) + timedelta(seconds=settings.AGENTSTATE_HEARTBEAT_SECONDS)
    return AgentDefinition.objects.filter(own, beat_at__gte=since).update(beat_at=now) == len(_had)


def withdraw_agents(now: datetime) -> None:
    """Withdraw what other workers had when this one published its agents, and none of them has any more."""
    _withdraw(RegisteredAgent.objects.filter(problem=""), imported_once(), now)


def note_broken(key: str, problem: str) -> None:
    """Note why an agent that this process registers cannot run here; "" if it can."""
    _broken.pop(key, None)
    if problem:
        _broken[key] = problem


def can_run(key: str) -> bool:
    """Whether nothing is known that keeps this process from running the agent."""
    return key not in _broken


def publish_listed_tools(durable: "WrappedAgent") -> None:
    """Publish the tools that the agent's toolsets list now that a run has warmed them up, if they are not yet."""
    from agentstate.durable.agent import describe
    from agentstate.durable.definition import finds_tools_at_run_time, tool_items, tools_of

    if not any(finds_tools_at_run_time(item) for item in tool_items(durable.agent)):
        return
    names = tuple(tool.name for tool in tools_of(durable.agent))
    if _listed.get(durable.key) == names:
        return
    description = describe(registry.get(durable.key))
    if not description.problem:
        RegisteredAgent.objects.filter(key=durable.key, definition=description.definition).update(
            tools=description.tools, tools_pending=description.tools_pending
        )
        AgentDefinition.objects.bulk_create(
            [_definition(durable.key, description)],
            update_conflicts=True,
            unique_fields=["agent", "definition"],
            update_fields=["parts"],
        )
    _listed[durable.key] = names


def load_agents() -> dict[str, str]:
    """Import the modules of AGENTSTATE_AGENTS; for each that cannot be imported, a sentence that says why."""
    problems = {}
    for module in settings.AGENTSTATE_AGENTS:
        try:
            registry.load([module])
        except AgentModuleMissing as error:
            problems[module] = str(error)
    return problems


def imported_once() -> dict[str, str]:
    """As `load_agents`, once in a process: a module that fails would be executed again each time."""
    return _problems_of(tuple(settings.AGENTSTATE_AGENTS))


@cache
def _problems_of(modules: tuple[str, ...]) -> dict[str, str]:
    return load_agents()


def runnable(key: str) -> Registration:
    """The registration of an agent that this process can run.

    :raises AgentError: saying what to do. A module that cannot be imported keeps only its own agents from running.
    """
    problems = imported_once()
    try:
        registration = registry.get(key)
    except AgentError as error:
        raise AgentModuleMissing(" ".join(problems.values())) if problems else error from None
    if why := _problem_of(registration.module, problems):
        raise AgentModuleMissing(why)
    return registration


def may_run_again(key: str) -> Callable[[str], bool]:
    """For an agent that may not be buildable: whether an interrupted call of a tool runs again without a person.

    By its registration, else as it was published last. It may, if nothing is known of the tool: the run of the agent
    that can be built again decides it.
    """
    try:
        registration = registry.get(key)
    except AgentError:
        policies = policies_of(RegisteredAgent.objects.filter(key=key).first())
        return lambda tool: tool not in policies or bool(policies[tool].get("idempotent"))
    return lambda tool: registration.policy(tool).idempotent


def _row(
    registration: Registration, description: "Description", published: RegisteredAgent | None
) -> RegisteredAgent:
    tools, pending = description.tools, description.tools_pending
    if pending and published is not None and published.definition == description.definition:
        # Another process has warmed the toolsets up: what they listed there still holds.
        names = {tool["name"] for tool in tools}
        listed = [tool for tool in published.tools if tool["name"] not in names]
        tools = [
            *tools,
            *(
                {**tool, "policy": description.policies.get(tool["name"], DEFAULT).to_dict()}
                for tool in listed
            ),
        ]
        pending = not listed
    return RegisteredAgent(
        key=registration.key,
        title=registration.title[:200],
        description=registration.description,
        model=description.model[:200],
        definition=description.definition,
        tools=tools,
        tools_pending=pending,
        inputs=description.inputs,
        options=description.options,
        module=registration.module[:300],
        problem=description.problem,
        published_at=timezone.now(),
    )


def _definition(key: str, description: "Description", beat_at: datetime | None = None) -> AgentDefinition:
    return AgentDefinition(
        agent=key, definition=description.definition, parts=description.parts, beat_at=beat_at
    )


def _withdraw(published: QuerySet[RegisteredAgent], problems: Mapping[str, str], now: datetime) -> None:
    """Withdraw those of these agents that neither this process registers nor a worker that is online has.

    A worker says that it has an agent in the transaction that publishes it. So what was published before this looked,
    and not again since, is no worker's: the condition of each write.
    """
    registered = [registration.key for registration in registry.all()]
    others = Exists(had_by_workers(now).filter(agent=OuterRef("key")))
    for row in published.exclude(key__in=registered).exclude(others):
        seen = RegisteredAgent.objects.filter(key=row.key, published_at=row.published_at)
        used = Exists(Session.objects.filter(agent=OuterRef("key")))
        if problems or not seen.exclude(used).delete()[0]:
            seen.update(problem=_why_not_registered(row.module, problems))
    for key, problem in _broken.items():
        published.filter(key=key, problem="").exclude(others).update(problem=problem)


def _why_not_registered(module: str, problems: Mapping[str, str]) -> str:
    """Why no process has the agent: what is wrong with its own module, where that is known, and nothing else."""
    return _problem_of(module, problems) or " ".join([_NOT_REGISTERED, *problems.values()])


def _problem_of(module: str, problems: Mapping[str, str]) -> str:
    """Why the module cannot be imported; "" where nothing is known of that."""
    for failed, problem in problems.items():
        if is_part_of(module, failed):
            return problem
    return ""
