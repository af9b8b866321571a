"""The wheel holds all of the project, and each extra brings what it is for: tried in clean environments."""

import json
import re
import signal
import subprocess
import threading
import tomllib
import zipfile
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from packaging.requirements import Requirement

import sessions_app
from tests.readme import write_examples
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


class Model(BaseHTTPRequestHandler):
    """A chat model's server: it asks for the tool that the question is about, and then answers with its result."""

    asked: list[str] = []
    kill_at = 0
    kill: Callable[[], None]

    def do_POST(self) -> None:
        messages = json.loads(self.rfile.read(int(self.headers["content-length"])))["messages"]
        last = messages[-1]
        self.asked.append(last["role"])
        if len(self.asked) == self.kill_at:
            type(self).kill()
            return
        message: dict[str, Any] = {"role": "assistant", "content": f"Done: {last['content']}"}
        if last["role"] == "user":
            pays = "Pay" in str(last["content"])
            name = "find_order"
            arguments: dict[str, Any] = {"number": "1042"}
            if pays:
                name, arguments = "pay_back", {"number": "1042", "amount": 5}
            function = {"name": name, "arguments": json.dumps(arguments)}
            call = {"id": f"call-{name}", "type": "function", "function": function}
            message = {"role": "assistant", "content": None, "tool_calls": [call]}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        body = {"id": "1", "object": "chat.completion", "created": 1, "model": "test", "choices": [choice]}
        answer = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def model() -> Iterator[dict[str, str]]:
    """The environment for a process that talks to `Model`."""
    Model.asked, Model.kill_at = [], 0
    with ThreadingHTTPServer(("127.0.0.1", 0), Model) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield environment(
            OPENAI_BASE_URL=f"http://127.0.0.1:{server.server_port}",
            OPENAI_API_KEY="none",
            HAYSTACK_TELEMETRY_ENABLED="false",
            no_proxy="127.0.0.1",
        )
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("kill_at", [1, 2, *(pytest.param(at, marks=pytest.mark.long) for at in (3, 4))])
def test_the_script_of_the_readme_runs_as_it_stands_also_when_it_is_killed(
    library: Path, model: dict[str, str], tmp_path: Path, kill_at: int
) -> None:
    write_examples(tmp_path)
    command = (str(library), "script.py")
    Model.kill_at = kill_at
    with running(command, model, tmp_path) as script:
        Model.kill = script.kill
        assert script.wait() == -signal.SIGKILL, script.output
    done = run(command, model, tmp_path)
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "Done: Order 1042 was sent on Monday."), (
        done.stderr
    )
    assert re.fullmatch(r"Done: Paid back 5\.00 for order 1042, reference \S+", done.stdout.splitlines()[-1])
    # The reply that was lost is asked for again, and no other.
    assert sorted(Model.asked) == sorted(["user", "tool"] * 2 + [["user", "tool"][(kill_at - 1) % 2]])
    again = run(command, model, tmp_path)
    assert again.stdout.splitlines()[0] == done.stdout.splitlines()[0]
    assert len(Model.asked) == 5


def test_the_extra_desk_starts_the_desk_outside_a_clone(wheel: Path, tmp_path: Path) -> None:
    python = make_environment(tmp_path / "desk", wheel, "desk")
    folder = tmp_path / "here"
    write_examples(folder)
    up = (str(python.parent / "agentstate"), "desk", "up", "--port", "0", "--no-demo")
    env = environment(AGENTSTATE_AGENTS="shop.agents", OPENAI_API_KEY="none")
    with running(up, env, folder) as desk:
        address = desk.wait_for_output(r"AgentState is at (http://[\d.:]+)/")[1]
        page = httpx.get(f"{address}/login/").raise_for_status().text
        style = re.search(r'href="(/static/desk/desk\.[0-9a-f]+\.css)"', page)
        assert style
        assert httpx.get(address + style[1]).raise_for_status().headers["content-type"].startswith("text/css")
        listed = run((*up[:2], "agent", "list"), env, folder)
        assert "shop" in listed.stdout, listed.stderr
        ask = "from shop.mailbox import ask; print(ask('mail-7', 'ann@example.com', 'Where is my order?'))"
        first, again = (run((str(python), "-c", ask), env, folder) for _ in range(2))
        assert first.stdout == again.stdout, first.stderr
        shown = run((*up[:2], "agent", "show", first.stdout.strip()), env, folder)
        assert "Where is my order?" in shown.stdout, first.stderr
    assert {path.name for path in folder.iterdir()} >= {".secret_key", "db.sqlite3", "staticfiles"}
