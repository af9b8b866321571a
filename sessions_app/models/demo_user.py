"""Which accounts `manage.py up` created."""

from django.conf import settings
from django.db import models


class DemoUser(models.Model):
    """An account of `sessions_app.access.demo_users`, which changes no account without such a row."""

    user = models.OneToOneField(
        settings.AUTH_USER_MODEL, primary_key=True, on_delete=models.CASCADE, related_name="+"
    )
    password_digest = models.CharField(
        max_length=64,
        help_text="SHA-256 of the user's stored password as it was set last; another one was set by a person.",
    )

    class Meta:
        default_permissions = ()

    def __str__(self) -> str:
        return str(self.user)
