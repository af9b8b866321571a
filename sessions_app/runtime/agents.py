"""Publishes the agents that the workers can run, for processes that import neither agents nor Haystack.

Only processes that run agents call `publish_agents`: it builds every registered agent, and so imports Haystack.
"""

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from agentstate.durable.registry import AgentModuleMissing, registry
from sessions_app.models import RegisteredAgent, Session


def publish_agents() -> list[str]:
    """Bring `RegisteredAgent` up to date with the registry.

    An agent that cannot be built is published with the problem. One that is no longer registered is deleted, unless it
    has sessions or a module cannot be imported; then its row stays, with the problem.

    :returns: For each module of AGENTSTATE_AGENTS that cannot be imported, a sentence that says why.
    """
    from agentstate.durable.agent import describe

    problems = load_agents()
    rows = []
    for registration in registry.all():
        description = describe(registration)
        rows.append(
            RegisteredAgent(
                key=registration.key,
                title=registration.title[:200],
                description=registration.description,
                model=description.model[:200],
                definition=description.definition,
                tools=description.tools,
                problem=description.problem,
                published_at=timezone.now(),
            )
        )
    with transaction.atomic():
        RegisteredAgent.objects.bulk_create(
            rows,
            update_conflicts=True,
            unique_fields=["key"],
            update_fields=["title", "description", "model", "definition", "tools", "problem", "published_at"],
        )
        unregistered = RegisteredAgent.objects.exclude(key__in=[row.key for row in rows])
        if not problems:
            unregistered.exclude(key__in=Session.objects.values("agent")).delete()
        unregistered.update(
            problem=" ".join(
                ["It is not registered any more: add its module to AGENTSTATE_AGENTS.", *problems]
            )
        )
    return problems


def load_agents() -> list[str]:
    """Import the modules of AGENTSTATE_AGENTS; for each that cannot be imported, returns a sentence that says why."""
    problems = []
    for module in settings.AGENTSTATE_AGENTS:
        try:
            registry.load([module])
        except AgentModuleMissing as error:
            problems.append(str(error))
    return problems
