"""What the workers tell the desk of the agents they can run.

Only processes that run agents call this: it builds every registered agent, and so imports Haystack.
"""

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from agentstate.durable.registry import AgentModuleMissing, registry
from sessions_app.models import RegisteredAgent, Session


def publish_agents() -> list[str]:
    """Bring `RegisteredAgent` up to date with the registry.

    An agent that cannot be built is published with the problem. One that is no longer registered goes, unless it has
    sessions or a module is broken; then it stays, with the problem.

    :returns: What is wrong with the modules of AGENTSTATE_AGENTS, a sentence each; the others are published.
    """
    from agentstate.durable.agent import describe

    problems = load_agents()
    rows = []
    for registration in registry.all():
        told = describe(registration)
        rows.append(
            RegisteredAgent(
                key=registration.key,
                title=registration.title[:200],
                description=registration.description,
                model=told.model[:200],
                definition=told.definition,
                tools=told.tools,
                problem=told.problem,
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
        gone = RegisteredAgent.objects.exclude(key__in=[row.key for row in rows])
        if not problems:
            gone.exclude(key__in=Session.objects.values("agent")).delete()
        gone.update(
            problem=" ".join(
                ["It is not registered any more: add its module to AGENTSTATE_AGENTS.", *problems]
            )
        )
    return problems


def load_agents() -> list[str]:
    """Import the modules of AGENTSTATE_AGENTS, as far as they can be; what is wrong with the others."""
    problems = []
    for module in settings.AGENTSTATE_AGENTS:
        try:
            registry.load([module])
        except AgentModuleMissing as error:
            problems.append(str(error))
    return problems
