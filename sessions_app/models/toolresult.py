"""The tool cache where there is no Redis: results that may be reused for a while."""

from django.db import models


class ToolResult(models.Model):
    """``key`` is ``tool:cache:{tool}:{SHA-256 of scope and arguments}``; a row past ``expires_at`` counts as none."""

    key = models.CharField(max_length=300, primary_key=True)
    value = models.JSONField()
    expires_at = models.DateTimeField(db_index=True)

    def __str__(self) -> str:
        return self.key
