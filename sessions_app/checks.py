"""System checks: of the declared actions, of the agents in the setting AGENTSTATE_AGENTS, and of the proxies.

Every command sees that the modules are there. Building the agents takes Haystack, and what their factories want (an
API key, say), so that is part of `manage.py check --deploy`.
"""

from importlib.util import find_spec
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, Info, Warning, register

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


def _exists(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):
        return False
