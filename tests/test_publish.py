"""What workers publish of their agents, and the system checks of the same."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent, indent

import pytest
from django.core.checks import CheckMessage, run_checks
from django.core.management import CommandError, call_command
from pytest_django import Settings

from agentstate.durable.registry import registry
from sessions_app.models import RegisteredAgent
from sessions_app.runtime.agents import publish_agents
from tests import builders

pytestmark = pytest.mark.django_db

Write = Callable[..., str]

AGENT = """
from typing import Annotated

from haystack.components.agents import Agent
from haystack.components.agents.state import State
from haystack.components.generators.chat import MockChatGenerator
from haystack.tools import tool

from agentstate import ToolPolicy, agent


@tool
def look_up(policy: Annotated[str, "its number"]) -> str:
    "Looks a policy up."
    return policy


@tool
def remember(text: Annotated[str, "what"], state: State) -> str:
    "Writes to the State."
    return text


@agent("{key}", title="Claims desk", policies={{{policies}}})
def build():
    "Helps with claims."
{body}
"""
BUILDS = 'return Agent(chat_generator=MockChatGenerator("hello"), tools=[look_up, remember])'


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: Settings) -> Iterator[Write]:
    """Writes a module with an agent, which is the only one in AGENTSTATE_AGENTS; returns the module's name."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registry, "_by_key", {})
    settings.AGENTSTATE_AGENTS = []
    written: list[str] = []

    def write(key: str = "claims", body: str = BUILDS, policies: str = "", text: str | None = None) -> str:
        name = f"written_{tmp_path.name.replace('-', '_')}_{len(written)}"
        source = (
            AGENT.format(key=key, body=indent(dedent(body), "    "), policies=policies)
            if text is None
            else text
        )
        (tmp_path / f"{name}.py").write_text(source)
        written.append(name)
        settings.AGENTSTATE_AGENTS = [*settings.AGENTSTATE_AGENTS, name]
        return name

    yield write
    for name in written:
        sys.modules.pop(name, None)


def agents() -> dict[str, str]:
    return dict(RegisteredAgent.objects.values_list("key", "problem"))


def checked() -> list[CheckMessage]:
    return run_checks(tags=["agentstate"], include_deployment_checks=True)


def test_an_agent_is_published_with_what_the_desk_needs(write: Write) -> None:
    write(policies='"look_up": ToolPolicy(cache_ttl=60)')
    assert publish_agents() == []
    agent = RegisteredAgent.objects.get()
    assert (agent.key, agent.title, agent.description) == ("claims", "Claims desk", "Helps with claims.")
    assert agent.problem == ""
    assert len(agent.definition) == 64
    look_up = next(tool for tool in agent.tools if tool["name"] == "look_up")
    assert look_up["parameters"]["properties"]["policy"]["type"] == "string"
    assert look_up["policy"]["cache_ttl"] == 60
    assert look_up["policy"]["idempotent"] is False
    assert look_up["output"] == {"type": "string"}


def test_publishing_again_updates_what_changed_and_makes_no_second_row(write: Write) -> None:
    write()
    builders.agent("claims", title="An old title", problem="It was broken once.", tools=[])
    publish_agents()
    agent = RegisteredAgent.objects.get()
    assert (agent.title, agent.problem, len(agent.tools)) == ("Claims desk", "", 2)


def test_an_agent_that_cannot_be_built_is_published_with_the_problem(write: Write) -> None:
    write("broken", body='raise RuntimeError("no API key")')
    write("well")
    assert publish_agents() == []
    assert "no API key" in agents()["broken"]
    assert agents()["well"] == ""


def test_a_broken_module_hides_no_other(write: Write) -> None:
    name = write(text="import nothing_of_that_name")
    write("well")
    [problem] = publish_agents()
    assert name in problem
    assert "nothing_of_that_name" in problem
    assert agents() == {"well": ""}


def test_an_unregistered_agent_is_deleted_unless_it_has_sessions(write: Write) -> None:
    write("well")
    builders.agent("unused")
    builders.done(agent_key="used")
    publish_agents()
    assert set(agents()) == {"well", "used"}
    assert "not registered any more" in agents()["used"]


def test_no_agent_is_deleted_while_a_module_is_broken(write: Write) -> None:
    name = write(text="import nothing_of_that_name")
    builders.agent("unused")
    publish_agents()
    assert name in agents()["unused"]


def test_valid_agents_pass_the_checks(write: Write) -> None:
    write(policies='"look_up": ToolPolicy(cache_ttl=60), "remember": ToolPolicy(idempotent=True)')
    assert checked() == []


def test_a_missing_module_fails_every_command(settings: Settings) -> None:
    settings.AGENTSTATE_AGENTS = ["no.such.module", "neither_this", ""]
    found = run_checks(tags=["agentstate"])
    assert [message.id for message in found] == ["agentstate.E001"] * 3
    assert "no.such.module" in found[0].msg
    with pytest.raises(CommandError, match=r"no\.such\.module"):
        call_command("check")


def test_a_plain_check_builds_no_agent(write: Write) -> None:
    name = write(body='raise RuntimeError("no API key")')
    assert run_checks(tags=["agentstate"]) == []
    assert name not in sys.modules


@pytest.mark.parametrize(
    "wrong, check, text",
    [
        ({"text": "import nothing_of_that_name"}, "agentstate.E002", "nothing_of_that_name"),
        ({"body": 'raise RuntimeError("no API key")'}, "agentstate.E003", "no API key"),
        ({"body": "return 5"}, "agentstate.E003", "returned a int"),
        ({"policies": '"look_upp": ToolPolicy()'}, "agentstate.E003", "look_upp"),
        (
            {"policies": '"remember": ToolPolicy(cache_ttl=60)'},
            "agentstate.W001",
            "'remember' has a cache_ttl",
        ),
    ],
    ids=["module", "factory", "no agent", "policy", "cache"],
)
def test_what_is_wrong_with_an_agent_is_found_before_deployment(
    wrong: dict[str, str], check: str, text: str, write: Write
) -> None:
    write(**wrong)
    [message] = checked()
    assert message.id == check
    assert text in message.msg
