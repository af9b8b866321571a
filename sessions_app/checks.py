"""System checks: of the declared actions, of the agents in the setting AGENTSTATE_AGENTS, of the proxies, of the
connections that the database accepts, and of the streams that a web process may hold open.

Every command sees that the modules are there. Building the agents takes Haystack, and what their factories want (an
API key, say), so that is part of `manage.py check --deploy`.
"""

from collections.abc import Sequence
from datetime import timedelta
from importlib.util import find_spec
from resource import RLIMIT_NOFILE, getrlimit
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, Info, Tags, Warning, register

HINT = "Correct the setting AGENTSTATE_AGENTS: a list of modules, separated by commas in the environment."


@register("agentstate")
def actions_can_be_done(app_configs: Any, **kwargs: Any) -> list[CheckMessage]:
    """Where an action is offered with nothing but a reason, its function must ask for nothing else."""
    from sessions_app.action_list import ACTIONS
    from sessions_app.actions import BY_FIELDS, BY_REASON

    return [
        Error(
            f"The action {action.key!r} declares {place!r}, but asks for more than a reason.",
            hint="Make its function with @asks_reason, or leave that out.",
            id="agentstate.E004",
        )
        for action in ACTIONS.values()
        for place in ("command", "admin", "bulk")
        if getattr(action, place)
        and action not in BY_REASON
        and not (action in BY_FIELDS and place == "bulk")
    ]


@register("agentstate")
def modules_exist(app_configs: Any, **kwargs: Any) -> list[CheckMessage]:
    """Looks for the modules without importing them (only the packages they are in)."""
    return [
        Error(f"There is no module {module!r}.", hint=HINT, id="agentstate.E001")
        for module in settings.AGENTSTATE_AGENTS
        if not _exists(module)
    ]


@register("agentstate", deploy=True)
def agents_can_be_built(app_configs: Any, **kwargs: Any) -> list[CheckMessage]:
    """Imports the modules and builds each agent once."""
    from agentstate.durable.agent import describe
    from agentstate.durable.registry import registry
    from sessions_app.runtime.agents import load_agents

    messages: list[CheckMessage] = [
        Error(problem, hint=HINT, id="agentstate.E002") for problem in load_agents().values()
    ]
    for registration in registry.all():
        description = describe(registration)
        if description.problem:
            messages.append(Error(description.problem, obj=registration.key, id="agentstate.E003"))
        messages.extend(
            Warning(
                f"The tool {tool['name']!r} has a cache_ttl, but is handed the live State: its calls are never cached.",
                hint="Leave cache_ttl out, or hand the tool what it needs as arguments.",
                obj=registration.key,
                id="agentstate.W001",
            )
            for tool in description.tools
            if tool["takes_state"] and tool["policy"]["cache_ttl"] is not None
        )
    return messages


@register("security", deploy=True)
def proxies_are_known(app_configs: Any, **kwargs: Any) -> list[CheckMessage]:
    """Where plain requests are redirected to HTTPS, something must be able to say that a request came over it."""
    if not settings.SECURE_SSL_REDIRECT or settings.TRUSTED_PROXIES is not None:
        return []
    kind, code = (Warning, "agentstate.W002") if settings.HTTPS else (Info, "agentstate.I001")
    return [
        kind(
            "TRUSTED_PROXIES is not set, so X-Forwarded-Proto is not believed: behind a proxy that ends TLS, every "
            "request is redirected to itself, and all people share the proxy's address when they sign in.",
            hint="Set TRUSTED_PROXIES to the number of reverse proxies, or to 0 if the web server itself ends TLS.",
            id=code,
        )
    ]


@register(Tags.database)
def connections_suffice(
    app_configs: Any, *, databases: Sequence[str] | None = None, **kwargs: Any
) -> list[CheckMessage]:
    """All processes together must not be able to open more connections than the PostgreSQL server accepts.

    Without AGENTSTATE_PROCESSES these are the workers that are online, and one web process. Part of
    `manage.py check --database default` and of `migrate`.
    """
    from django.db import DEFAULT_DB_ALIAS, connection

    each = connection.settings_dict["OPTIONS"].get("connections")
    if DEFAULT_DB_ALIAS not in (databases or ()) or connection.vendor != "postgresql" or not each:
        return []
    processes = settings.AGENTSTATE_PROCESSES or _workers_online() + 1
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int"
        )
        (accepted,) = cursor.fetchone()
    if processes * each <= accepted:
        return []
    return [
        Warning(
            f"{processes} processes with up to {each} connections each may open {processes * each}, and this "
            f"PostgreSQL server accepts {accepted}.",
            hint="Lower AGENTSTATE_CONNECTIONS, correct AGENTSTATE_PROCESSES, or raise max_connections of the server.",
            id="agentstate.W003",
        )
    ]


@register("agentstate", deploy=True)
def descriptors_suffice(app_configs: Any, **kwargs: Any) -> list[CheckMessage]:
    """A web process must be able to hold all its streams open, and still answer everything else."""
    from sessions_app.watching import news

    allowed, _ = getrlimit(RLIMIT_NOFILE)
    if not news.are_told() or allowed >= 2 * settings.AGENTSTATE_STREAMS:
        return []
    return [
        Warning(
            f"A web process may hold {settings.AGENTSTATE_STREAMS} streams open, and has {allowed} file descriptors "
            "for them and for everything else.",
            hint="Lower AGENTSTATE_STREAMS, or raise the limit of open files (ulimit -n) to twice as many.",
            id="agentstate.W004",
        )
    ]


def _workers_online() -> int:
    from django.db import connection
    from django.utils import timezone

    from sessions_app.models import Worker

    # Before the first `migrate` there is no such table.
    if Worker._meta.db_table not in connection.introspection.table_names():
        return 0
    since = timezone.now() - timedelta(seconds=settings.AGENTSTATE_LEASE_SECONDS)
    return Worker.objects.filter(beat_at__gte=since, stopped_at=None).count()


def _exists(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):
        return False
