"""The processes that run sessions, as they report themselves with each heartbeat."""

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
