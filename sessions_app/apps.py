"""What Django has to know about the app before anything else runs."""

from importlib import import_module
from typing import Any

from django.apps import AppConfig
from django.db.models.signals import post_migrate


class SessionsConfig(AppConfig):
    name = "sessions_app"
    verbose_name = "Sessions"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        # Tasks bind to this app; without it they would look for a broker of their own.
        import_module("agentstate.celery")
        import_module("sessions_app.checks")
        import_module("sessions_app.setting_checks")
        import_module("sessions_app.history.snapshot")  # with it `AgentState.of` reads a session
        import_module("sessions_app.mirror.live").connect()
        post_migrate.connect(_ensure_roles, sender=self)


def _ensure_roles(**kwargs: Any) -> None:
    """Groups follow permissions, and Django makes those after each migrate."""
    from sessions_app.access.roles import ensure_roles

    ensure_roles()
