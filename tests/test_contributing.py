"""CONTRIBUTING.md is right: an action that is added by following it appears everywhere."""

import getpass
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools.processes import PROJECT, environment

STEP = re.compile(
    r"Add to (?:the (?P<where>end|imports) of )?`(?P<file>[^`]+)`(?:, below `(?P<anchor>[^`]+)`)?:\n\n"
    r"(?P<indent> *)```(?:python|markdown)\n(?P<code>.*?)\n *```",
    re.DOTALL,
)
LENGTHS = "test_no_module_is_longer_than_350_lines"
FOUND = """
import io, json
import django
django.setup()
from django.core.management import call_command
from django.test import Client
from django.test.utils import setup_test_environment
setup_test_environment()
call_command("migrate", verbosity=0)
from sessions_app.models import Event, Session
from tests import builders
builders.agent()
anna = builders.user("supervisor", "anna")
session = builders.paused()
url = f"/sessions/{session.pk}/"
client = Client(); client.force_login(anna)
viewer = Client(); viewer.force_login(builders.user("viewer", "vera"))
button = f'href="{url}escalate/'
page, seen = client.get(url).content.decode(), viewer.get(url).content.decode()
dialog = client.get(url + "escalate/").content.decode()
refused = viewer.post(url + "escalate/", {"version": session.version, "reason": "No"}).status_code
done = client.post(url + "escalate/", {"version": session.version, "reason": "She is angry"}, follow=True)
other = builders.paused()
out = io.StringIO()
call_command("agent", "escalate", str(other.pk), "--reason", "He is angry", stdout=out)
third = builders.paused()
admin = client.post("/admin/sessions_app/session/", {
    "action": "escalate", "_selected_action": [str(third.pk)], "reason": "All are angry",
})
cancelled = builders.cancelled()
impossible = client.post(f"/sessions/{cancelled.pk}/escalate/", {"version": cancelled.version, "reason": "x"})
print("RESULT" + json.dumps({
    "the button works for those who may": button in page,
    "and is disabled for others": button not in seen and "Escalate" in seen,
    "dialog": "Escalate to a supervisor" in dialog,
    "refused": refused,
    "told": "Escalated." in done.content.decode(),
    "events": sorted(Event.objects.filter(kind="escalated").values_list("actor_name", "reason")),
    "tags": Session.objects.filter(tags__name="escalated").count(),
    "timeline": "escalated it" in client.get(url).content.decode(),
    "audit": "Escalated it" in client.get(url + "audit/").content.decode(),
    "people": "escalated it" in client.get(url + "?show=people").content.decode(),
    "people of the command line": "escalated it" in client.get(f"/sessions/{other.pk}/?show=people").content.decode(),
    "command": out.getvalue().startswith(str(other.pk)),
    "admin": Event.objects.filter(session=third, kind="escalated").count(),
    "bulk": "kind=escalate" in client.get("/bulk/?queue=all").content.decode(),
    "rule": impossible.status_code,
}))
"""


def add(project: Path, step: re.Match[str]) -> None:
    """Insert the code of one step as the text says."""
    path = project / step["file"]
    code = [line.removeprefix(step["indent"]) for line in step["code"].split("\n")]
    lines = path.read_text().split("\n")
    if step["anchor"]:
        place = next(i for i, line in enumerate(lines) if step["anchor"] in line) + 1
        margin = re.match(" *", lines[place - 1])
        assert margin is not None
        lines[place:place] = [margin[0] + line for line in code]
    elif step["where"] == "imports":
        place = max(i for i, line in enumerate(lines) if line.startswith("from sessions_app"))
        while not lines[place].endswith(")") and lines[place].endswith("("):
            place = next(i for i in range(place, len(lines)) if lines[i] == ")")
        lines[place + 1 : place + 1] = code
    else:
        lines += ["", *code, ""]
    path.write_text("\n".join(lines))


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project to which the action has been added by following the instructions."""
    project = tmp_path_factory.mktemp("contributing") / "project"
    ignored = shutil.ignore_patterns(".*", "node_modules", "staticfiles", "db.sqlite3*", "var", "__pycache__")
    shutil.copytree(PROJECT, project, ignore=ignored)
    for step in steps():
        add(project, step)
    subprocess.run(
        [sys.executable, "manage.py", "makemigrations", "sessions_app", "--name", "escalate"],
        cwd=project,
        env=environment_of(project),
        check=True,
        capture_output=True,
    )
    return project


def steps() -> list[re.Match[str]]:
    return list(STEP.finditer((PROJECT / "CONTRIBUTING.md").read_text()))


def environment_of(project: Path) -> dict[str, str]:
    database = project.parent / "db.sqlite3"
    return environment(DATABASE_URL=f"sqlite:///{database}", DJANGO_SETTINGS_MODULE="tests.settings")


def test_an_action_is_added_in_five_files_outside_the_tests() -> None:
    files = {step["file"] for step in steps()} | {"sessions_app/migrations"}
    assert len({file for file in files if not file.startswith("tests/")}) == 5


@pytest.mark.long
@pytest.mark.slow
def test_the_tests_of_the_tables_pass_once_the_action_is_added(project: Path) -> None:
    files = ("availability", "actions_refusals", "action_declarations", "bulk", "roles", "security_page")
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:randomly", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, *(f"tests/test_{file}.py" for file in files), f"tests/test_architecture.py::{LENGTHS}"],
        cwd=project,
        env=environment_of(project),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
def test_an_action_added_by_the_instructions_appears_everywhere(project: Path) -> None:
    env = environment_of(project)
    done = subprocess.run([sys.executable, "-c", FOUND], cwd=project, env=env, capture_output=True, text=True)
    assert "RESULT" in done.stdout, done.stderr
    assert json.loads(done.stdout.rpartition("RESULT")[2]) == {
        "the button works for those who may": True,
        "and is disabled for others": True,
        "dialog": True,
        "refused": 403,
        "told": True,
        "events": [
            ["anna", "All are angry"],
            ["anna", "She is angry"],
            [f"command line: {getpass.getuser()}", "He is angry"],
        ],
        "tags": 3,
        "timeline": True,
        "audit": True,
        "people": True,
        "people of the command line": True,
        "command": True,
        "admin": 1,
        "bulk": True,
        "rule": 409,
    }
