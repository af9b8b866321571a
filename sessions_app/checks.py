"""System checks: of the declared actions, of the agents in the setting AGENTSTATE_AGENTS, of the proxies, of the
connections that the database accepts, and of the streams that a web process may hold open.

Every command sees that the modules are there. Building the agents takes Haystack, and what their factories want (an
API key, say), so that is part of `manage.py check --deploy`.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from resource import RLIMIT_NOFILE, getrlimit
from typing import Any

from django.conf import settings
from django.core.checks import WARNING, CheckMessage, Error, Info, Tags, Warning, register
from django.db import DEFAULT_DB_ALIAS

HINT = "Correct the setting AGENTSTATE_AGENTS: a list of modules, separated by commas in the environment."
# A child with prefork needs so many: for its run, its heartbeat and the mirror.
FEWEST_CONNECTIONS = 3
WITH_CONNECTIONS = (
    "each web process, each worker with threads, with prefork each child and its parent, and `update_search --follow`; "
    "`celery beat` opens no connection"
)


@register("agentstate")
def actions_can_be_done(app_configs: Any, **kwargs: Any) -> list[CheckMessage]:
    """Where an action is offered with nothing but a reason, its function must ask for nothing else."""
    from sessions_app.action_list import ACTIONS
    from sessions_app.actions import BY_FIELDS, BY_REASON

    return [
        Error(
            f"The action {action.key!r} declares {place!r}, but asks for more than a reason.",
            hint="Decorate its function with @asks_reason, or remove that from the declaration.",
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
    keys = [registration.key for registration in registry.all()]
    # Where a module cannot be loaded, its agents are not known.
    windows = [] if messages else [key for key in settings.AGENTSTATE_CONTEXT_WINDOW if key]
    messages.extend(
        Warning(
            f"AGENTSTATE_CONTEXT_WINDOW names the agent {key!r}, which no module registers.",
            hint=f"The agents are: {', '.join(keys)}.",
            id="agentstate.W008",
        )
        for key in windows
        if key not in keys
    )
    for registration in registry.all():
        description = describe(registration)
        if description.problem:
            messages.append(Error(description.problem, obj=registration.key, id="agentstate.E003"))
        messages.extend(
            Warning(
                f"The tool {tool['name']!r} has a cache_ttl, but receives the live State: its calls are never cached.",
                hint="Remove cache_ttl, or pass the tool what it needs as arguments.",
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
            "TRUSTED_PROXIES is not set, so X-Forwarded-Proto is ignored: behind a proxy that ends TLS, every "
            "request is redirected to itself, and all people share the proxy's address when they sign in.",
            hint="Set TRUSTED_PROXIES to the number of reverse proxies, or to 0 if the web server itself ends TLS.",
            id=code,
        )
    ]


# Both have both tags: where one is chosen by a tag, so is the other, which leaves the comparison to it.
@register("agentstate", Tags.database)
def connections_suffice(
    app_configs: Any, *, databases: Sequence[str] | None = None, **kwargs: Any
) -> list[CheckMessage]:
    """All processes together must not be able to open more connections than the PostgreSQL server accepts.

    Part of `manage.py check --database default` and of `migrate`, which fail where the server cannot be reached.
    """
    if DEFAULT_DB_ALIAS not in (databases or ()):
        return []
    return _connections(unreachable=partial(Error, id="agentstate.E005"))


@register("agentstate", Tags.database, deploy=True)
def connections_suffice_in_production(
    app_configs: Any, *, databases: Sequence[str] | None = None, **kwargs: Any
) -> list[CheckMessage]:
    """The same, as part of `manage.py check --deploy`, which may run where the server cannot be reached."""
    if DEFAULT_DB_ALIAS in (databases or ()):
        return []
    return _connections(unreachable=partial(Info, id="agentstate.I002"))


def _connections(unreachable: Callable[[str], CheckMessage]) -> list[CheckMessage]:
    from django.core.exceptions import ImproperlyConfigured
    from django.db import Error as DatabaseError
    from django.db import connection

    if connection.vendor != "postgresql":
        return []
    try:
        accepted, processes = _accepted(), _processes()
    except (DatabaseError, ImproperlyConfigured) as error:
        why = " ".join(str(error).split())
        what = f"The PostgreSQL server could not be asked how many connections it accepts: {why}"
        message = unreachable(what)
        refused = isinstance(error, ImproperlyConfigured) or _is_refused(why)
        if message.is_serious(WARNING) or not refused:
            return [message]
        return [Warning(what, hint="Correct DATABASE_URL, or what the server permits.", id="agentstate.W007")]
    each = connection.settings_dict["OPTIONS"].get("connections")
    hint = f"{_what_to_set(accepted, processes.number)} {processes.counted}"
    if not each:
        # How many threads there are is said on the command lines of workers and web servers only.
        return [
            Warning(
                "AGENTSTATE_CONNECTIONS is 0, so connections are not limited: each thread of each process may open "
                f"one, and this PostgreSQL server accepts {accepted}.",
                hint=hint,
                id="agentstate.W005",
            )
        ]
    if processes.number * each <= accepted:
        return []
    number = "1 process" if processes.number == 1 else f"{processes.number} processes"
    return [
        Warning(
            f"{number} with up to {each} connections each may open {processes.number * each}, and this PostgreSQL "
            f"server accepts {accepted}.",
            hint=hint,
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


def _is_refused(why: str) -> bool:
    """Whether the server answers and refuses, or a parameter is refused, instead of a server that cannot be reached.

    Of a connection that fails there is only this text, in which the server's own words follow their severity.
    """
    return any(sign in why for sign in ("FATAL:", "invalid ", "bad value ", "no password supplied"))


@dataclass(frozen=True, slots=True)
class _Processes:
    """
    number: of those that open connections.
    counted: which they are, for a hint.
    """

    number: int
    counted: str


def _accepted() -> int:
    """The connections that the server accepts, by one of its own: a pool would wait for a server that is away."""
    from django.db import connection

    apart = connection.copy()
    apart.settings_dict["OPTIONS"].pop("connections", None)
    try:
        with apart.cursor() as cursor:
            cursor.execute(
                "SELECT current_setting('max_connections')::int "
                "- current_setting('superuser_reserved_connections')::int"
            )
            (accepted,) = cursor.fetchone()
    finally:
        apart.close()
    return int(accepted)


def _processes() -> _Processes:
    """As AGENTSTATE_PROCESSES says, otherwise those that are known to be there, and one web process.

    A process of a pool is online as a worker, and its parent is not: so machines on which there are several workers
    are taken to have a parent as well.
    """
    from sessions_app.wording import count

    if settings.AGENTSTATE_PROCESSES:
        return _Processes(
            settings.AGENTSTATE_PROCESSES, f"AGENTSTATE_PROCESSES should count {WITH_CONNECTIONS}."
        )
    machines, follows = _online()
    workers = machines.total()
    parents = sum(number > 1 for number in machines.values())
    online = (
        f"{count(workers, 'worker')} online, {count(parents, 'parent')} of prefork children, 1 web process"
    )
    return _Processes(
        workers + parents + 1 + follows,
        f"Counted were {online} and {int(follows)} `update_search --follow`. Set AGENTSTATE_PROCESSES where that is "
        f"wrong: it counts {WITH_CONNECTIONS}.",
    )


def _online() -> tuple[Counter[str], bool]:
    """How many workers are online, by machine, and whether a process of its own adds to the search."""
    from django.db import ProgrammingError
    from django.utils import timezone

    from sessions_app.finding import search_follower
    from sessions_app.models import Worker, online_since

    since = online_since(timezone.now())
    names = Worker.objects.filter(beat_at__gte=since, stopped_at=None).values_list("name", flat=True)
    try:
        return Counter(name.rpartition(":")[0] for name in names), search_follower.follows()
    except ProgrammingError:  # before `migrate` there are no such tables
        return Counter(), False


def _what_to_set(accepted: int, processes: int) -> str:
    most = accepted // processes
    what = f"to {most} or less, but not to 0"
    if most < FEWEST_CONNECTIONS:
        what = f"to {FEWEST_CONNECTIONS}, and run at most {accepted // FEWEST_CONNECTIONS} processes"
    return f"Set AGENTSTATE_CONNECTIONS {what}, or raise max_connections of the server."


def _exists(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):
        return False
