"""What workers publish of their agents, and the system checks of the same."""

import sys
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from textwrap import dedent, indent
from typing import Annotated, Any, Literal

import pytest
from django.core.checks import CheckMessage, run_checks
from django.core.management import CommandError, call_command
from haystack.components.agents import Agent
from haystack.components.generators.chat import MockChatGenerator
from pytest_django import Settings

from agentstate.durable import agent as building
from agentstate.durable.description import run_inputs
from sessions_app import actions
from sessions_app.access.errors import Refused
from sessions_app.models import AgentDefinition, RegisteredAgent
from sessions_app.runtime import agents as publishing
from sessions_app.runtime import worker
from sessions_app.runtime.agents import publish_agents
from tests import builders
from tools.processes import environment, run

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
def write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: Settings, own_registry: None
) -> Iterator[Write]:
    """Writes a module with an agent, which is the only one in AGENTSTATE_AGENTS; returns the module's name."""
    monkeypatch.syspath_prepend(tmp_path)
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
    publishing._listed.clear()
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


def test_an_agent_is_published_with_what_a_run_of_it_can_be_given(write: Write) -> None:
    write(
        body="""
        return Agent(
            chat_generator=MockChatGenerator("hello"), system_prompt="You help {{ who }}.",
            state_schema={"amount": {"type": float}, "document": {"type": State}},
        )
        """
    )
    publish_agents()
    assert RegisteredAgent.objects.get().inputs == {
        "prompt": False,
        "values": [
            {"name": "who", "required": True, "type": "text", "schema": {}},
            {"name": "amount", "required": False, "type": "float", "schema": {"type": "number"}},
            {"name": "document", "required": False, "type": "State", "schema": None},
        ],
    }


@pytest.mark.parametrize(
    "kind, schema",
    [
        ("list[dict[str, int | None]]", True),
        ('list[Annotated[Literal["a", "b"], "one of two"]]', True),
        ("Mapping[str, Any]", True),
        ("set[int]", False),
        ("tuple[int, int]", False),
        ("Decimal", False),
        ("dict[str, list[Decimal]]", False),
        ("Decimal | None", False),
        ("datetime", False),
        ("bytes", False),
    ],
)
def test_only_types_whose_values_json_gives_back_can_be_given_as_json(kind: str, schema: bool) -> None:
    names = {
        "Annotated": Annotated, "Any": Any, "Decimal": Decimal, "Literal": Literal, "Mapping": Mapping,
        "datetime": datetime,
    }  # fmt: skip
    agent = Agent(
        chat_generator=MockChatGenerator("hello"), state_schema={"value": {"type": eval(kind, names)}}
    )
    (value,) = run_inputs(agent)["values"]
    assert (value["schema"] is not None) == schema


def test_each_definition_is_recorded_once_with_its_parts(write: Write) -> None:
    write()
    publish_agents()
    publish_agents()
    registered, recorded = RegisteredAgent.objects.get(), AgentDefinition.objects.get()
    assert (recorded.agent, recorded.definition) == ("claims", registered.definition)
    assert recorded.parts["model"]["name"] == "mock-model"
    assert recorded.parts["tools"]["look_up"]["description"] == "Looks a policy up."


LAZY = """
    from haystack.tools import SearchableToolset, Tool, Toolset

    class Remote(Toolset):
        "Lists its tools once it is warmed up, as a toolset of an MCP server does."

        def __init__(self):
            super().__init__([])

        def warm_up(self):
            self.tools = [look_up, remember]

    return Agent(chat_generator=MockChatGenerator("hello"), tools={tools})
"""


@pytest.mark.slow
@pytest.mark.parametrize("tools", ["[Remote()]", "SearchableToolset([Remote()])"], ids=["remote", "searched"])
def test_tools_that_are_listed_later_are_published_by_the_run_that_warms_them_up(
    write: Write, tools: str
) -> None:
    write(body=LAZY.replace("{tools}", tools), policies='"look_up": ToolPolicy(cache_ttl=60)')
    publish_agents()
    before = RegisteredAgent.objects.get()
    assert (before.tools, before.tools_pending) == ([], True)
    session = actions.start(actor=builders.SYSTEM, agent="claims", message="Hello")
    assert worker.drive(session.pk, worker="tests") == "idle"
    agent = RegisteredAgent.objects.get()
    assert [tool["name"] for tool in agent.tools] == ["look_up", "remember"]
    assert (agent.tools_pending, agent.definition) == (False, before.definition)
    assert set(AgentDefinition.objects.get().parts["tools"]) >= {"look_up", "remember"}
    # A worker that starts knows them not yet, and takes nothing from the page.
    building._built.pop("claims")
    publishing._listed.clear()
    publish_agents()
    agent = RegisteredAgent.objects.get()
    assert [tool["name"] for tool in agent.tools] == ["look_up", "remember"]
    assert agent.tools[0]["policy"]["cache_ttl"] == 60


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


def test_an_agent_that_its_module_registered_before_it_failed_is_not_started(write: Write) -> None:
    source = AGENT.format(key="half", body=indent(BUILDS, "    "), policies="")
    name = write(text=f"{source}\n\nraise RuntimeError('A key needs a digit.')\n")
    write("well")
    [problem] = publish_agents()
    assert f"'{name}' cannot be imported" in problem
    assert "A key needs a digit. Correct the module" in problem
    assert agents() == {"half": problem, "well": ""}
    with pytest.raises(Refused, match="A key needs a digit"):
        actions.start(actor=builders.SYSTEM, agent="half", message="Hello")
    # A session that was there before waits for its agent, and those of other modules run.
    RegisteredAgent.objects.update(problem="")
    for agent, status in (("half", "waiting"), ("well", "idle")):
        session = actions.start(actor=builders.SYSTEM, agent=agent, message="Hello")
        assert worker.drive(session.pk, worker="tests") == status
        session.refresh_from_db()
        assert (problem in session.why) == (agent == "half")


def test_what_was_published_of_an_agent_stays_while_its_module_fails(write: Write) -> None:
    source = AGENT.format(key="half", body=indent(BUILDS, "    "), policies="")
    write(text=f"{source}\n\nraise RuntimeError('A key is missing')\n")
    tools = [{"name": "pay", "parameters": {}, "policy": {"effect": "moves money"}}]
    RegisteredAgent.objects.create(key="half", title="Half", definition="d1", tools=tools)
    publish_agents()
    row = RegisteredAgent.objects.get(key="half")
    assert (row.definition, row.tools) == ("d1", tools)
    assert "A key is missing" in row.problem


def test_a_module_that_fails_is_executed_once_for_all_runs(write: Write, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    runs.touch()
    counted = (
        f"from pathlib import Path\nruns = Path({str(runs)!r})\nruns.write_text(runs.read_text() + 'x')\n"
    )
    write(text=f"{counted}raise RuntimeError('A key is missing')\n")
    write("well")
    publish_agents()
    before = runs.read_text()
    for _ in range(3):
        session = actions.start(actor=builders.SYSTEM, agent="well", message="Hello")
        assert worker.drive(session.pk, worker="tests") == "idle"
    assert len(runs.read_text()) <= len(before) + 1


def test_an_agent_whose_module_has_an_error_is_published_with_the_place_and_the_error_alone(
    write: Write, tmp_path: Path
) -> None:
    name = write(text="def build(:\n    pass\n")
    builders.done(agent_key="shop")
    builders.agent("other")
    RegisteredAgent.objects.filter(key="shop").update(module=name)
    publish_agents()
    file = tmp_path / f"{name}.py"
    assert agents()["shop"] == (
        f"The agent module '{name}' cannot be imported: {file}, line 1: SyntaxError: invalid syntax. "
        "Correct the module, then restart the workers."
    )
    assert agents()["other"].startswith("It is no longer registered")


def test_an_error_in_a_factory_is_published_with_its_place(write: Write, tmp_path: Path) -> None:
    name = write(body='raise RuntimeError("no API key")')
    publish_agents()
    lines = (tmp_path / f"{name}.py").read_text().splitlines()
    line = next(number for number, text in enumerate(lines, 1) if "no API key" in text)
    assert f"{tmp_path / name}.py, line {line}: RuntimeError: no API key" in agents()["claims"]


def test_an_unregistered_agent_is_deleted_unless_it_has_sessions(write: Write) -> None:
    write("well")
    builders.agent("unused")
    builders.done(agent_key="used")
    publish_agents()
    assert set(agents()) == {"well", "used"}
    assert "no longer registered" in agents()["used"]


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
        ({"body": "return 5"}, "agentstate.E003", "returned an int"),
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


def test_a_context_window_of_an_agent_that_is_not_registered_is_found_before_deployment(
    write: Write, settings: Any
) -> None:
    settings.AGENTSTATE_CONTEXT_WINDOW = {"": 128_000, "claims": 32_000, "nosuchagent": 5}
    write()
    [message] = checked()
    assert (message.id, message.hint) == ("agentstate.W008", "The agents are: claims.")
    assert "'nosuchagent'" in message.msg


@pytest.mark.slow
def test_no_module_registers_an_agent_but_those_that_the_setting_names():
    """A command that imports the demo for something else must not offer its agents on a desk of other agents."""
    code = """
import pkgutil
import django
django.setup()
import agentstate
import sessions_app
from agentstate.durable.registry import registry

for package in (agentstate, sessions_app):
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if module.name not in ("agentstate.__main__", "agentstate.demo.agents"):
            __import__(module.name)
print(*(registration.key for registration in registry.all()))
"""
    env = environment(SECRET_KEY="for this test", DJANGO_SETTINGS_MODULE="agentstate.settings")
    done = run((sys.executable, "-c", code), env)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == ""
