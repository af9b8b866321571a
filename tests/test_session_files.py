"""Session files are read without running them: in code, by `agentstate show`, and many of them in one folder."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from haystack.components.agents import Agent
from haystack.components.agents.state import State
from haystack.hooks import hook

from agentstate import DurableAgent, ToolPolicy
from agentstate.__main__ import main
from agentstate.journals import FileJournal, SessionFolder, load, show
from agentstate.journals.file import JournalFileError
from tests import sample_agents
from tools import processes

pytestmark = pytest.mark.usefixtures("no_effects")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "anna.jsonl"


def waiting(path: Path) -> DurableAgent:
    durable = DurableAgent(sample_agents.refunds(), path, policies={"refund": ToolPolicy(approval=True)})
    durable.run("Pay back\nall \x1b[31mof it")
    return durable


def test_a_session_is_shown_with_its_calls_and_what_it_waits_for(path: Path) -> None:
    durable = waiting(path)
    assert show(load(path)) == (
        "Session anna: waiting. refund needs approval.\n"
        "  user        Pay back\n"
        "              all \ufffd[31mof it\n"
        "  assistant   step 0\n"
        '  calls       fast(q="look")\n'
        '  calls       refund(order="A1", amount=100)\n'
        '  calls       refund(order="B2", amount=7)\n'
        '  r1 needs approval: refund(order="A1", amount=100)\n'
        '  r2 needs approval: refund(order="B2", amount=7)\n'
    )
    for call in durable.pending():
        durable.decide(call.call_id, approve=True)
    durable.resume()
    assert show(load(path)).splitlines()[7:] == [
        "  result      fast: fast:look",
        "  result      refund: refunded 100 for A1",
        "  result      refund: refunded 7 for B2",
        "  assistant   Refund handled.",
    ]


def test_a_session_is_shown_while_another_journal_has_it_open_and_is_not_changed(path: Path) -> None:
    with FileJournal.open(path, say="hi"):
        before = path.read_bytes()
        assert show(load(path)) == "Session anna: unfinished.\n  unread      hi\n"
        assert path.read_bytes() == before


@pytest.mark.parametrize(
    "content, error",
    [
        (None, "cannot be read: No such file or directory."),
        (b"dear diary\n", "is not a journal of AgentState."),
        (b'{"op":"format","version":1}\n{"op":"nonsense"}\n', "line 2"),
    ],
)
def test_what_is_no_session_is_said_in_a_line(
    path: Path, content: bytes | None, error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(JournalFileError, match=error):
        load(path)
    assert main(["show", str(path)]) == 1
    assert error in capsys.readouterr().err


@pytest.mark.slow
def test_the_command_shows_a_file_without_importing_haystack_or_django(path: Path) -> None:
    waiting(path)
    code = (
        "import runpy, sys; sys.argv[0] = 'agentstate'\n"
        "try: runpy.run_module('agentstate', run_name='__main__')\n"
        "except SystemExit as end: print(end.code, [m for m in ('haystack', 'django') if m in sys.modules])"
    )
    done = processes.run((sys.executable, "-c", code, "show", str(path)), processes.environment())
    assert done.stdout == show(load(path)) + "0 []\n", done.stderr


@pytest.mark.slow
def test_a_session_is_shown_in_a_clone_as_the_readme_says(path: Path) -> None:
    waiting(path)
    readme = (processes.PROJECT / "README.md").read_text()
    [command] = re.findall(r"in a clone `\.venv/bin/python ([^`]*) session\.jsonl`", readme)
    done = processes.run((sys.executable, *command.split(), str(path)), processes.environment())
    assert done.stdout == show(load(path)), done.stderr


@pytest.mark.slow
def test_the_command_ends_quietly_with_the_program_that_reads_it(path: Path) -> None:
    waiting(path)
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        (sys.executable, "-m", "agentstate", "show", str(path)),
        env=processes.environment(), stdout=writer, stderr=subprocess.PIPE, timeout=50, check=False,
    )  # fmt: skip
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_session_names_the_state_keys_in_whose_place_a_text_is_stored(path: Path) -> None:
    @hook
    def sets(state: State) -> None:
        state.set("when", {"made by": Path})

    agent = Agent(
        chat_generator=sample_agents.scripted("Hello."),
        hooks={"before_run": [sets]},
        state_schema={"when": {"type": Any}},
    )
    assert DurableAgent(agent, path).run("hi").finished
    assert show(load(path)).splitlines()[-1] == "  state       when: stored in place of builtins.type"


def test_a_folder_holds_many_sessions_and_none_outside_of_it(tmp_path: Path) -> None:
    sessions = SessionFolder(tmp_path / "sessions")
    for name in ("bob", "anna"):
        DurableAgent(sample_agents.plain_talk(), sessions.path(name)).run(f"I am {name}")
    assert sessions.ids() == ["anna", "bob"]
    assert next(body["content"][0]["text"] for body in sessions.load("bob").messages.values()) == "I am bob"
    with sessions.open("bob", say="again") as journal:
        assert journal.session_id == "bob"
    assert (tmp_path / "sessions").stat().st_mode & 0o777 == 0o700
    for name in ("", "..", "../bob", "a/b", "a\x00b"):
        with pytest.raises(ValueError, match="session"):
            sessions.path(name)
