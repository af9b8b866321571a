"""Imports run in layers, and heavy libraries are imported only where they are needed.

The layers themselves are contracts of import-linter in pyproject.toml.
"""

import ast
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tools import module_map

ROOT = Path(__file__).resolve().parent.parent

# The part of the engine that a web process and an agent's author import: it needs no Haystack.
LIGHT = tuple(
    f"agentstate.durable.{name}"
    for name in (
        "cache",
        "idempotency",
        "policy",
        "registry",
        "port",
        "records",
        "progress",
    )
)

# The documents that describe the code as it is, and the folders in which a file that they name may be.
DOCUMENTS = sorted(
    [
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "examples/README.md")),
        *(ROOT / "docs").glob("*.md"),
    ]
)
DOCUMENTS.remove(module_map.TARGET)  # has a test of its own
FOLDERS = ("", "agentstate", "examples", "sessions_app", "templates", "tests")


def modules() -> dict[str, Path]:
    paths = {}
    for package in ("agentstate", "sessions_app"):
        for path in sorted((ROOT / package).rglob("*.py")):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            paths[name.removesuffix(".__init__")] = path
    return paths


MODULES = modules()


@cache
def imports(name: str) -> list[str]:
    """The absolute name of everything that the module imports, wherever in it."""
    targets: list[str] = []
    for node in ast.walk(ast.parse(MODULES[name].read_text())):
        if isinstance(node, ast.Import):
            targets += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{name} has a relative import"
            targets += [f"{node.module}.{alias.name}" for alias in node.names]
    return targets


def inside(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def test_imports_run_in_layers_without_a_cycle() -> None:
    command = [str(Path(sys.executable).parent / "lint-imports"), "--no-logo"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def packages(name: str) -> set[str]:
    return {target.partition(".")[0] for target in imports(name)}


def test_the_domain_needs_only_the_standard_library() -> None:
    domain = [name for name in MODULES if inside(name, "agentstate.domain")]
    # tiktoken counts tokens exactly, where it is installed.
    needed = {name: packages(name) - sys.stdlib_module_names - {"agentstate", "tiktoken"} for name in domain}
    assert {name: others for name, others in needed.items() if others} == {}
    assert len(domain) > 5


def test_only_the_engine_and_the_demo_agents_import_haystack() -> None:
    # The library does so in functions only: importing it imports no framework, which a test below shows.
    engine = (
        "agentstate.durable",
        "agentstate.demo",
        "agentstate.library.agent",
        "agentstate.library.given",
        "agentstate.library.turn_rules",
    )
    importing = [name for name in MODULES if "haystack" in packages(name)]
    assert [
        name for name in importing if name in LIGHT or not any(inside(name, package) for package in engine)
    ] == []
    assert importing
    assert set(LIGHT) <= MODULES.keys()


def test_no_module_can_unpickle() -> None:
    pickling = {"pickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}
    assert {name: packages(name) & pickling for name in MODULES if packages(name) & pickling} == {}


def loaded(code: str, *packages: str) -> list[str]:
    """Which of the packages a fresh process has imported after the code."""
    ask = f"import sys\n{code}\nprint([p for p in {packages!r} if p in sys.modules])"
    process = subprocess.run(
        [sys.executable, "-c", ask],
        cwd=ROOT,
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "agentstate.settings"},
        capture_output=True,
        text=True,
        check=True,
    )
    names: list[str] = ast.literal_eval(process.stdout)
    return names


def test_importing_agentstate_imports_no_framework() -> None:
    assert loaded("import agentstate", "django", "celery", "haystack") == []


def test_a_policy_a_key_and_the_decorator_need_no_framework() -> None:
    code = "from agentstate import ToolPolicy, agent, idempotency_key"
    assert loaded(code, "django", "celery", "haystack") == []


def test_a_web_process_imports_neither_haystack_nor_agents() -> None:
    code = (
        "from agentstate.wsgi import application\n"
        "import sessions_app.actions, sessions_app.access.availability, sessions_app.desk.pages, sessions_app.tasks"
    )
    assert loaded(code, "haystack", "agentstate.demo.agents") == []


@pytest.mark.slow
@pytest.mark.parametrize("server", ["wsgi", "asgi"])
def test_a_web_process_has_its_views_before_the_first_request_and_never_collects_them(server: str) -> None:
    code = (
        f"import gc, agentstate.{server}, sys\n"
        "assert 'sessions_app.desk.views.inbox' in sys.modules\n"
        "assert gc.get_freeze_count() > 50_000, gc.get_freeze_count()"
    )
    assert loaded(code, "haystack") == []


@pytest.mark.slow
def test_the_commands_that_run_no_agent_do_not_import_haystack() -> None:
    names = ("agent", "rebuild_search", "up", "update_search")
    modules = ", ".join(f"sessions_app.management.commands.{name}" for name in names)
    assert loaded(f"import django; django.setup(); import {modules}", "haystack") == []


@pytest.mark.slow
def test_a_worker_imports_haystack() -> None:
    """The counterpart, so that the tests above cannot pass for a wrong name."""
    assert loaded("import django; django.setup(); import sessions_app.runtime.worker", "haystack") == [
        "haystack"
    ]


def test_the_list_of_modules_is_up_to_date() -> None:
    assert module_map.TARGET.read_text() == module_map.module_map(), "Run python -m tools.module_map"


def test_the_architecture_names_every_package() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    packages = {
        f"{package}/{path.name}/"
        for package in ("agentstate", "sessions_app")
        for path in (ROOT / package).iterdir()
        if (path / "__init__.py").exists()
    }
    table = set(re.findall(r"^\| `([a-z_/]+/)` \|", text, re.MULTILINE))
    assert packages - table == {
        "sessions_app/management/",
        "sessions_app/migrations/",
        "sessions_app/templatetags/",
    }


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_a_document_names_only_files_that_exist(document: Path) -> None:
    for name in re.findall(r"`([a-z_/]+\.(?:py|html|js|css))`", document.read_text()):
        assert any((ROOT / folder / name).exists() for folder in FOLDERS), name


def test_each_hop_from_a_click_to_the_page_names_one_file() -> None:
    _, _, hops = (ROOT / "docs" / "architecture.md").read_text().partition("from the click to the page\n")
    files = [
        re.findall(r"`[a-z_/]+\.(?:py|html)`", hop) for hop in re.split(r"^\d+\. ", hops, flags=re.M)[1:]
    ]
    assert [len(names) for names in files] == [1] * 23


def test_no_module_is_longer_than_350_lines() -> None:
    lengths = {
        name: path.read_text().count("\n") for name, path in MODULES.items() if ".migrations." not in name
    }
    assert {name: lines for name, lines in lengths.items() if lines > 350} == {}


@pytest.mark.parametrize("name", ["agentstate", "sessions_app", "templates", "static", "tests"])
def test_the_parts_of_the_project_stand_at_the_top_level_where_a_newcomer_looks_for_them(name: str) -> None:
    # A wheel takes the templates and static files from there.
    assert any(path.is_file() for path in (ROOT / name).rglob("*.*"))


def test_no_template_or_static_file_stands_in_a_package() -> None:
    folders = [ROOT / "agentstate", ROOT / "sessions_app"]
    assert [path for folder in folders for path in folder.rglob("*.html")] == []
    assert [path for folder in folders for path in folder.rglob("*.css")] == []
