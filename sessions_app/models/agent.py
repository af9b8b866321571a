"""The agents that can be run, as the workers that can run them publish it.

A web process never imports an agent's code (or Haystack): what the desk knows of an agent is this row.
"""

from django.db import models
from django.utils import timezone


class RegisteredAgent(models.Model):
    """``tools`` is ``[{"name", "description", "parameters": JSON schema, "policy": {...}}]``."""

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
    problem = models.TextField(blank=True, default="", help_text="Why it cannot be built, if so.")
    published_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["title"]

    def __str__(self) -> str:
        return self.title
