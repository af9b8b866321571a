"""The agents that can be run, as the workers that can run them publish it.

A web process never imports an agent's code (or Haystack): what the desk knows of an agent is this row.
"""

from datetime import datetime
from typing import Any

from django.db import models
from django.utils import timezone

from sessions_app.models.compiled import compiled
from sessions_app.models.loading import LoadedModel
from sessions_app.models.worker import online_since


class RegisteredAgent(LoadedModel):
    """``tools`` is ``[{"name", "description", "parameters": JSON schema, "policy": {...}}]``.

    ``inputs`` is what a run can be given beside its messages, see `agentstate.durable.description.run_inputs`; {} where
    that is not known. ``options`` is how workers run it, as `agentstate.durable.agent.run_options`.
    """

    key = models.CharField(max_length=100, primary_key=True)
    title = models.CharField(max_length=200)
    description = models.TextField(blank=True, default="")
    model = models.CharField(
        max_length=200, blank=True, default="", help_text="The model's name, as its generator tells it."
    )
    definition = models.CharField(
        max_length=64, blank=True, default="", help_text="Fingerprint of what the factory builds."
    )
    tools = models.JSONField(default=list, blank=True)
    tools_pending = models.BooleanField(
        default=False, help_text="A toolset lists its tools only once a worker has warmed it up."
    )
    inputs = models.JSONField(default=dict, blank=True)
    options = models.JSONField(null=True, blank=True)
    module = models.CharField(
        max_length=300, blank=True, default="", help_text="The module that registers it."
    )
    problem = models.TextField(blank=True, default="", help_text="Why it cannot be built, if so.")
    published_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["title"]

    def __str__(self) -> str:
        return self.title


@compiled
def registered_agents(key: str) -> models.QuerySet[RegisteredAgent]:
    """The agent with this key, if the workers have published one."""
    return RegisteredAgent.objects.filter(key=key)


def policies_of(agent: RegisteredAgent | None) -> dict[str, dict[str, Any]]:
    """The policy of each tool by its name, as the agent's workers published it; {} for a tool without one."""
    return {tool["name"]: tool.get("policy") or {} for tool in (agent.tools if agent else [])}


class AgentDefinition(models.Model):
    """What an agent was at one fingerprint, as `agentstate.durable.description.definition_parts`.

    It says what a session ran with whose agent has changed since, and whether a worker has this very agent.
    """

    agent = models.CharField(max_length=100)
    definition = models.CharField(max_length=64)
    parts = models.JSONField(default=dict)
    published_at = models.DateTimeField(default=timezone.now)
    beat_at = models.DateTimeField(
        null=True, blank=True, help_text="When a worker last said that it has this agent."
    )

    class Meta:
        constraints = [models.UniqueConstraint(fields=["agent", "definition"], name="definition_once")]

    def __str__(self) -> str:
        return f"{self.agent} {self.definition[:8]}"


def had_by_workers(now: datetime) -> models.QuerySet[AgentDefinition]:
    """What agents are in the workers that are online."""
    return AgentDefinition.objects.filter(beat_at__gte=online_since(now))


class LossyResult(models.Model):
    """A type of which an agent's tool returned values that could not be stored as they are, and when it last did."""

    agent = models.CharField(max_length=100)
    tool = models.CharField(max_length=200)
    kind = models.CharField(max_length=200, help_text="The type's name.")
    seen_at = models.DateTimeField(default=timezone.now)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["agent", "tool", "kind"], name="lossy_once")]

    def __str__(self) -> str:
        return f"{self.tool}: {self.kind}"
