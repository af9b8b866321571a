"""docs/sources.md names a test for each row of what the sources of the project describe; some of them are here."""

import ast
import re
from functools import cache

import pytest
from django.db import IntegrityError, transaction

from agentstate import Answered, DurableAgent
from agentstate.journals import MemoryJournal
from sessions_app.models import Session
from tests import builders, sample_agents
from tests.sample_agents import effects
from tools.processes import PROJECT

pytestmark = pytest.mark.usefixtures("no_effects")

PAGE = PROJECT / "docs" / "sources.md"


def rows() -> list[list[str]]:
    """The cells of every row of the tables, without their heads."""
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    return [
        [cell.strip() for cell in line.strip("|").split(" | ")]
        for line in lines
        if not line.startswith("| What")
    ]


@cache
def functions_of(name: str) -> frozenset[str]:
    tree = ast.parse((PROJECT / "tests" / name).read_text())
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


@pytest.mark.slow
def test_every_row_names_tests_that_exist() -> None:
    assert len(rows()) > 30
    for what, here, shown_by in rows():
        named = re.findall(r"`(test_\w+\.py)::(test_\w+)`", shown_by)
        assert named, what
        assert here, what
        for file, test in named:
            assert test in functions_of(file), f"{what}: {file} has no {test}"


def test_the_page_has_the_four_sources() -> None:
    heads = re.findall(r"^## (S\d)", PAGE.read_text(), re.M)
    assert heads == ["S1", "S2", "S3", "S4"]


@pytest.mark.django_db
def test_the_database_refuses_a_change_of_phase_that_the_state_machine_forbids() -> None:
    session = builders.done()
    with pytest.raises(IntegrityError, match="session_phase_change_allowed"), transaction.atomic():
        Session.objects.filter(pk=session.pk).update(previous_phase="done", phase="executing")


@pytest.mark.parametrize(
    "given, told",
    [
        ({"system_prompt": "Be brief."}, "Haystack 3 has no system_prompt for a run: give the agent a"),
        ({"snapshot": {}}, r"Haystack 3 has no snapshot for a run: go back to a checkpoint by resume\(at="),
    ],
)
def test_what_haystack_3_would_ignore_is_refused_before_anything_is_asked(
    given: dict[str, object], told: str
) -> None:
    journal = MemoryJournal.open()
    with pytest.raises(ValueError, match=told):
        DurableAgent(sample_agents.long_run(1), journal).run("hi", None, key="", **given)  # type: ignore[arg-type]
    assert effects == []
    agent = sample_agents.long_run(1, system_prompt="{{ system_prompt }}")
    outcome = DurableAgent(agent, MemoryJournal.open()).run("hi", system_prompt="Be brief.")
    assert isinstance(outcome, Answered)
    assert outcome.result["messages"][0].text == "Be brief."
