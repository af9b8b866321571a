"""Dependencies run one way, and heavy libraries are imported only where they are needed."""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# The part of the engine that needs no Haystack, which a web process may use.
LIGHT = tuple(
    f"agentstate.durable.{name}" for name in ("cache", "context", "policy", "registry", "journal", "progress")
)
# What answers to a page or a command is made of.
READS = (
    "sessions_app.queries",
    "sessions_app.masking",
    "sessions_app.models",
    "sessions_app.packing",
    "sessions_app.restore",
    "sessions_app.rules",
    "sessions_app.roles",
    "agentstate.domain",
    *LIGHT,
)
DESK = (
    *READS,
    "sessions_app.views",
    "sessions_app.actions",
    "sessions_app.errors",
    "sessions_app.search",
    "sessions_app.forms",
    "sessions_app.forms_batch",
    "sessions_app.forms_many",
    "sessions_app.forms_repair",
    "sessions_app.filters",
    "sessions_app.templatetags",
)

# What a module may import of this project, by prefix; the longest prefix of the module's own name decides.
# A module that no line here covers fails the test: a new room has to say where it stands.
MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "agentstate": ("agentstate.durable.context", "agentstate.durable.policy", "agentstate.durable.registry"),
    "agentstate.settings": (),
    "agentstate.urls": ("sessions_app.urls",),
    "agentstate.asgi": (),
    "agentstate.wsgi": (),
    "agentstate.celery": ("sessions_app.publish", "sessions_app.tasks", "sessions_app.leases"),
    "agentstate.domain": ("agentstate.domain",),
    "agentstate.durable": ("agentstate.durable", "agentstate.domain"),
    "agentstate.journals": ("agentstate.journals", "agentstate.durable"),
    "agentstate.demo": ("agentstate", "sessions_app"),
    "sessions_app": (),
    "sessions_app.migrations": ("sessions_app.models",),
    "sessions_app.models": ("sessions_app.models", "agentstate.domain"),
    "sessions_app.apps": ("agentstate.celery", "sessions_app.checks", "sessions_app.roles"),
    "sessions_app.errors": (),
    "sessions_app.roles": (),
    "sessions_app.rules": ("sessions_app.models",),
    "sessions_app.packing": ("sessions_app.models",),
    "sessions_app.rowsql": ("sessions_app.models", *LIGHT),
    "sessions_app.restore": ("sessions_app.models", "sessions_app.packing", *LIGHT),
    "sessions_app.masking": ("sessions_app.models", "sessions_app.errors"),
    "sessions_app.search": ("sessions_app.models", "sessions_app.masking"),
    "sessions_app.searchindex": ("sessions_app.models", "sessions_app.search"),
    "sessions_app.leases": ("sessions_app.models",),
    "sessions_app.lending": (*LIGHT,),
    "sessions_app.rows": ("sessions_app.models", "sessions_app.packing", "sessions_app.rowsql", *LIGHT),
    "sessions_app.handover": (
        "sessions_app.models",
        "sessions_app.leases",
        "sessions_app.restore",
        "sessions_app.rowsql",
        *LIGHT,
    ),
    "sessions_app.journal": (
        "sessions_app.models",
        "sessions_app.handover",
        "sessions_app.leases",
        "sessions_app.lending",
        "sessions_app.restore",
        "sessions_app.rows",
        "sessions_app.rowsql",
        *LIGHT,
    ),
    "sessions_app.toolcache": ("sessions_app.models", "sessions_app.lending", *LIGHT),
    "sessions_app.worker": (
        "sessions_app.models",
        "sessions_app.leases",
        "sessions_app.journal",
        "sessions_app.toolcache",
        "agentstate.durable",
    ),
    "sessions_app.publish": ("sessions_app.models", "agentstate.durable"),
    "sessions_app.checks": ("sessions_app.publish", "agentstate.durable"),
    "sessions_app.tasks": (
        "agentstate.celery",
        "sessions_app.leases",
        "sessions_app.searchindex",
        "sessions_app.toolcache",
        "sessions_app.actions",
        "sessions_app.worker",
    ),
    "sessions_app.embedded": ("agentstate.celery", "sessions_app.tasks", "sessions_app.worker"),
    "sessions_app.actions": (
        "sessions_app.actions",
        "sessions_app.models",
        "sessions_app.errors",
        # What a saved view may hold is what the list understands.
        "sessions_app.filters",
        "sessions_app.queries.queues",
        "sessions_app.roles",
        "sessions_app.rules",
        "sessions_app.tasks",
        "sessions_app.packing",
        "sessions_app.restore",
        "agentstate.domain",
        *LIGHT,
    ),
    "sessions_app.queries": READS,
    "sessions_app.views": DESK,
    "sessions_app.urls": DESK,
    "sessions_app.forms": DESK,
    "sessions_app.forms_batch": DESK,
    "sessions_app.forms_many": DESK,
    "sessions_app.forms_repair": DESK,
    "sessions_app.filters": DESK,
    "sessions_app.admin": DESK,
    "sessions_app.templatetags": DESK,
    "sessions_app.management": (
        *DESK,
        "sessions_app.embedded",
        "sessions_app.publish",
        "sessions_app.tasks",
        "agentstate.demo",
    ),
}

# What each part may import of the outside, where that is not everything.
NO_DJANGO = ("agentstate.domain", "agentstate.durable", "agentstate.journals")
HAYSTACK_AT_HOME = ("agentstate.durable", "agentstate.demo")
STANDARD_LIBRARY_ONLY = ("agentstate.domain",)


def modules() -> dict[str, Path]:
    found = {}
    for package in ("agentstate", "sessions_app"):
        for path in sorted((ROOT / package).rglob("*.py")):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            found[name.removesuffix(".__init__")] = path
    return found


MODULES = modules()


def imports(name: str) -> Iterator[str]:
    """Every module that the module imports, wherever in it, as precisely as it can be told."""
    path = MODULES[name]
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = ".".join(
                    [*package.split(".")[: len(package.split(".")) - node.level + 1], *base.split(".")]
                )
            for alias in node.names:
                whole = f"{base}.{alias.name}"
                yield whole if whole in MODULES else base


def inside(name: str, prefixes: tuple[str, ...]) -> bool:
    return any(name == prefix or name.startswith(f"{prefix}.") for prefix in prefixes)


def room_of(name: str) -> str:
    return max((room for room in MAY_IMPORT if inside(name, (room,))), key=len, default="")


@pytest.mark.parametrize("name", sorted(MODULES))
def test_a_room_imports_only_from_the_rooms_below_it(name: str) -> None:
    room = room_of(name)
    assert room, f"{name} is a new room: say in MAY_IMPORT where it stands"
    if room in ("agentstate", "sessions_app"):
        assert name == room, f"{name} is a new room: say in MAY_IMPORT where it stands"
    wrong = [
        target
        for target in imports(name)
        if inside(target, ("agentstate", "sessions_app"))
        and target not in (room, name)
        # `from agentstate import agent` is the public surface, which agents use.
        and not inside(target, MAY_IMPORT[room])
    ]
    assert wrong == []


@pytest.mark.parametrize("name", [name for name in sorted(MODULES) if inside(name, NO_DJANGO)])
def test_the_engine_knows_neither_django_nor_celery(name: str) -> None:
    assert [target for target in imports(name) if inside(target, ("django", "celery", "kombu"))] == []


@pytest.mark.parametrize("name", [name for name in sorted(MODULES) if inside(name, STANDARD_LIBRARY_ONLY)])
def test_the_domain_knows_only_the_standard_library(name: str) -> None:
    foreign = (
        {target.partition(".")[0] for target in imports(name)} - set(sys.stdlib_module_names) - {"agentstate"}
    )
    # An exact token count is an extra that is used where it is installed.
    assert foreign <= {"tiktoken"}


@pytest.mark.parametrize("name", sorted(MODULES))
def test_haystack_stays_in_the_engine(name: str) -> None:
    allowed = inside(name, HAYSTACK_AT_HOME) and not inside(name, LIGHT)
    if not allowed:
        assert [target for target in imports(name) if inside(target, ("haystack",))] == []


def loaded(code: str, *packages: str) -> list[str]:
    """Which of the packages a fresh process has imported after the code."""
    ask = f"import sys\n{code}\nprint([p for p in {packages!r} if p in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", ask],
        cwd=ROOT,
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "agentstate.settings"},
        capture_output=True,
        text=True,
        check=True,
    )
    names: list[str] = ast.literal_eval(done.stdout)
    return names


def test_importing_agentstate_imports_no_framework() -> None:
    assert loaded("import agentstate", "django", "celery", "haystack") == []


def test_a_policy_a_key_and_the_decorator_need_no_framework() -> None:
    code = "from agentstate import ToolPolicy, agent, idempotency_key"
    assert loaded(code, "django", "celery", "haystack") == []


def test_a_web_process_imports_neither_haystack_nor_agents() -> None:
    code = (
        "from agentstate.wsgi import application\n"
        "from django.urls import get_resolver\n"
        "get_resolver().url_patterns\n"
        "import sessions_app.actions, sessions_app.rules, sessions_app.queries"
    )
    assert loaded(code, "haystack", "agentstate.demo.agents") == []


def test_the_worker_is_the_room_that_imports_haystack() -> None:
    """The counterpart, so that the test above cannot pass for a wrong name."""
    assert loaded("import django; django.setup(); import sessions_app.worker", "haystack") == ["haystack"]
