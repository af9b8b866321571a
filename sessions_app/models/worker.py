"""The processes that run sessions, as they report themselves with each heartbeat."""

from datetime import datetime, timedelta

from django.conf import settings
from django.db import models
from django.utils import timezone


class Worker(models.Model):
    name = models.CharField(max_length=200, unique=True)
    started_at = models.DateTimeField(default=timezone.now)
    beat_at = models.DateTimeField(default=timezone.now, db_index=True)
    stopped_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name


def online_since(now: datetime) -> datetime:
    """A worker whose last heartbeat is older than this counts as offline: three were to come since."""
    return now - timedelta(seconds=3 * settings.AGENTSTATE_HEARTBEAT_SECONDS)
