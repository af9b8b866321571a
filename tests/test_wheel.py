"""The wheel holds all of the project, and each extra brings what it is for: tried in clean environments."""

import json
import re
import subprocess
import tomllib
import zipfile
from pathlib import Path

import httpx
import pytest
from packaging.requirements import Requirement

import sessions_app
from tools.clean_environment import build_wheel, make_environment
from tools.processes import PROJECT, environment, run, running

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

# The modules that the requirements of the extra `desk` bring, where the name differs.
MODULE_OF = {
    "dj-database-url": "dj_database_url",
    "django-axes": "axes",
    "django-csp": "csp",
    "django-htmx": "django_htmx",
    "django-template-partials": "template_partials",
    "google-re2": "re2",
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def library(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of `pip install agentstate`."""
    return make_environment(tmp_path_factory.mktemp("library"), wheel)


def importable(python: Path, *modules: str) -> list[str]:
    code = "import json, sys; from importlib.util import find_spec as find\n"
    code += f"print(json.dumps([name for name in {modules!r} if find(name)]))"
    done = subprocess.run([python, "-c", code], cwd="/", capture_output=True, text=True, check=True)
    names: list[str] = json.loads(done.stdout)
    return names


def test_it_holds_every_module_template_static_file_and_data_file(wheel: Path) -> None:
    stored = set(zipfile.ZipFile(wheel).namelist())
    places = {"templates": "sessions_app/templates", "static": "sessions_app/static"}
    wanted = {
        f"{places.get(folder, folder)}/{path.relative_to(PROJECT / folder).as_posix()}"
        for folder in ("agentstate", "sessions_app", "templates", "static")
        for path in (PROJECT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert wanted - stored == set()
    assert {name.partition("/")[0] for name in stored} == {
        "agentstate",
        "sessions_app",
        "agentstate-0.1.0.dist-info",
    }


def test_alone_it_brings_the_engine_and_neither_django_nor_celery(library: Path) -> None:
    assert importable(library, "agentstate", "haystack", "django", "celery", "redis") == [
        "agentstate",
        "haystack",
    ]


def test_the_desk_without_its_extra_says_which_one_is_missing(library: Path) -> None:
    said = (
        r"The desk needs the extra 'desk': pip install 'agentstate\[desk\]' \(not installed: axes, celery, "
    )
    imported = run((str(library), "-c", "import sessions_app"), environment(), Path("/"))
    assert re.search(f"ImportError: {said}", imported.stderr)
    started = run((str(library.parent / "agentstate"), "desk", "up"), environment(), Path("/"))
    assert (started.returncode, bool(re.match(said, started.stderr))) == (1, True)


def test_the_modules_that_the_desk_checks_are_those_of_its_extra() -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    names = [Requirement(text).name for text in project["optional-dependencies"]["desk"]]
    assert sorted(MODULE_OF.get(name, name) for name in names) == sorted(sessions_app._NEEDED)


def test_the_extra_valkey_brings_the_client_and_nothing_of_the_desk(wheel: Path, tmp_path: Path) -> None:
    python = make_environment(tmp_path / "valkey", wheel, "valkey")
    assert importable(python, "redis", "django", "celery") == ["redis"]


def test_the_extra_desk_starts_the_desk_outside_a_clone(wheel: Path, tmp_path: Path) -> None:
    python = make_environment(tmp_path / "desk", wheel, "desk")
    folder = tmp_path / "here"
    (folder / "shop").mkdir(parents=True)
    (folder / "shop" / "agents.py").write_text("")
    up = (str(python.parent / "agentstate"), "desk", "up", "--port", "0", "--no-demo")
    with running(up, environment(AGENTSTATE_AGENTS="shop.agents"), folder) as desk:
        address = desk.wait_for_output(r"AgentState is at (http://[\d.:]+)/")[1]
        page = httpx.get(f"{address}/login/").raise_for_status().text
        style = re.search(r'href="(/static/desk/desk\.[0-9a-f]+\.css)"', page)
        assert style
        assert httpx.get(address + style[1]).raise_for_status().headers["content-type"].startswith("text/css")
    assert {path.name for path in folder.iterdir()} >= {".secret_key", "db.sqlite3", "staticfiles"}
