"""The commands that pages and other commands name work here: in a clone or an installed desk, with Redis or without."""

import ast
import re
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from django.test import Client
from django.utils import timezone

from sessions_app.finding import search_masking
from sessions_app.models import RegisteredAgent
from tests import builders
from tools.processes import PROJECT

pytestmark = pytest.mark.django_db


@pytest.fixture
def viewer(client: Client) -> Client:
    client.force_login(builders.user("viewer"))
    return client


@pytest.fixture(params=["manage.py", "agentstate desk"])
def manage(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    for module in ("sessions_app.templatetags.desk", "sessions_app.management.commands.agent"):
        monkeypatch.setattr(f"{module}.MANAGE", request.param)
    return str(request.param)


def commands(client: Client, address: str) -> list[str]:
    return re.findall(r"<code>([^<]+)</code>", client.get(address).content.decode())


@pytest.mark.parametrize(
    "redis_url, command", [("", "{} up"), ("redis://localhost", "celery -A agentstate worker")]
)
def test_where_no_worker_runs_the_pages_name_a_command_that_starts_one(
    viewer: Client, manage: str, settings: Any, redis_url: str, command: str
) -> None:
    settings.REDIS_URL = redis_url
    session = builders.queued()
    session.next_run_at = timezone.now() - timedelta(hours=1)
    session.save()
    assert commands(viewer, "/?queue=all") == [command.format(manage)]
    assert commands(viewer, "/workers/") == [command.format(manage)] * 2


def test_an_outdated_search_index_is_built_again_by_the_command_of_this_installation(
    viewer: Client, manage: str, settings: Any
) -> None:
    search_masking.store()
    settings.AGENTSTATE_MASK_PATTERNS = [r"DE\d+"]
    assert f"{manage} rebuild_search" in commands(viewer, "/workers/")


def test_synthetic_sessions_are_searched_at_once_after_a_command_that_keeps_the_index(manage: str) -> None:
    RegisteredAgent.objects.create(key="claims", title="Claims desk")
    out = StringIO()
    call_command("agent", "synth", "--sessions", "1", "--steps", "0", stdout=out)
    assert out.getvalue().endswith(f"over time; {manage} update_search does it now.\n")


@pytest.mark.slow
def test_no_page_and_no_message_names_a_command_as_a_clone_alone_has_it() -> None:
    named = [path for path in (PROJECT / "templates").rglob("*.html") if "manage.py" in path.read_text()]
    for path in [*(PROJECT / "sessions_app").rglob("*.py"), *(PROJECT / "agentstate").rglob("*.py")]:
        nodes = list(ast.walk(ast.parse(path.read_text())))
        docs = {
            node.value
            for node in nodes
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        }
        texts = [node for node in nodes if isinstance(node, ast.Constant) and node not in docs]
        named += [path for text in texts if "manage.py" in str(text.value)]
    assert set(named) == {PROJECT / "agentstate" / "installation.py"}
