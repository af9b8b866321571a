"""The examples, run as they stand: real processes in an empty folder."""

import inspect
import subprocess
import sys
from pathlib import Path

import pytest
from haystack.components.agents import Agent

from examples import agent_options
from tools.processes import PROJECT, environment

pytestmark = pytest.mark.slow


def example(name: str, *arguments: str, folder: Path, code: int = 0) -> list[str]:
    """The lines that the script prints."""
    env = environment(PYTHONPATH=str(PROJECT), PYTHONWARNINGS="ignore", HAYSTACK_TELEMETRY_ENABLED="false")
    command = [sys.executable, "-m", f"examples.{name}", *arguments]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    return done.stdout.splitlines()


def test_the_conversation_goes_on_over_three_processes(tmp_path: Path) -> None:
    first = example("support_desk", "What is the status of my policy POL-8801?", folder=tmp_path)
    second = example("support_desk", "Please also check whether my deductible applies.", folder=tmp_path)
    third = example("support_desk", "Look up claim CLM-1042.", folder=tmp_path)
    assert first == [
        "0 messages from earlier runs.",
        "POL-8801 of Maria Santos: home, active until 31 December. In this conversation I have used: look_up_policy.",
    ]
    assert second[1].startswith("POL-8801: the first 300 euros of each damage.")
    assert third == [
        "9 messages from earlier runs.",
        "CLM-1042 on POL-8801: a broken window, 1250 euros. "
        "In this conversation I have used: look_up_policy, check_deductible, look_up_claim.",
    ]


def test_the_state_machine_is_resumed_by_its_sessions_id_and_repeats_nothing(tmp_path: Path) -> None:
    question = "Which city is warmer, Lisbon or Oslo?"
    first = example("state_machine", "trip", question, "--iterations", "2", folder=tmp_path)
    second = example("state_machine", "trip", folder=tmp_path)
    assert first[-1] == "Left in phase reflecting."
    assert [line.strip() for line in first + second if "measuring" in line] == [
        "measuring in Lisbon",
        "measuring in Oslo",
    ]
    assert second[0] == "Session trip goes on in phase reflecting."
    assert second[-1] == "Lisbon is the warmest, at 21 degrees."
    assert example("state_machine", "trip", folder=tmp_path) == [
        "Session trip goes on in phase done.",
        "Lisbon is the warmest, at 21 degrees.",
    ]
    assert example("state_machine", "other", "Where is Rome?", folder=tmp_path)[-1] == (
        "I know no city in this question."
    )


def test_the_three_patterns_work_on_a_real_server(redis_url: str, tmp_path: Path) -> None:
    killed = example("valkey_patterns", redis_url, "--die", folder=tmp_path, code=-9)
    assert killed == [
        "report-on-tides",
        "    searching the web",
        "    querying the database",
        "    dying while it writes the report",
    ]
    resumed = example("valkey_patterns", redis_url, folder=tmp_path)
    assert resumed[:3] == ["report-on-tides", "    writing the report", "  Done: a report of 16 words."]
    assert resumed[3] == (
        "HASH    status complete, current step 4, result_step_1, result_step_2, result_step_3, result_step_4"
    )
    assert resumed[4].startswith("STREAM  open ask checkpoint reply call call")
    assert resumed[5:] == ["another session", "    writing the report", "  Done: a report of 16 words."]


def test_every_option_of_the_agent_is_shown_and_gives_the_same_plain_and_durable(tmp_path: Path) -> None:
    lines = example("agent_options", folder=tmp_path)
    options = [name for name in inspect.signature(Agent.__init__).parameters if name != "self"]
    assert [line.split()[:2] for line in lines] == [[option, "equal"] for option in options]
    assert list(agent_options.OPTIONS) == options


def test_each_example_says_how_to_run_it_and_has_a_paragraph() -> None:
    readme = (PROJECT / "examples" / "README.md").read_text()
    scripts = {path.stem for path in (PROJECT / "examples").glob("*.py")} - {"__init__", "scripted"}
    for script in scripts:
        assert f"**`{script}.py`: " in readme
        assert f"python -m examples.{script}" in readme
