"""A session in one file: it outlives its processes, only one uses it at a time, and no other file is ever changed."""

import errno
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from agentstate import ToolPolicy
from agentstate.durable.agent import make_durable
from agentstate.durable.port import JournalUnavailable, LeaseLost
from agentstate.durable.run import Options, run
from agentstate.durable.run_end import NothingToDo
from agentstate.journals import FileJournal
from agentstate.journals.file import JournalFileError, load
from tests import sample_agents
from tests.dying import Died
from tests.sample_agents import effects
from tools import processes
from tools.processes import environment

pytestmark = pytest.mark.usefixtures("no_effects")

# One turn of the demo agent; with a third argument its process dies in the middle of a tool.
TURN = """
import json, os, signal, sys
from agentstate.demo import agents, tools
from agentstate.durable.agent import build
from agentstate.durable.registry import registry
from agentstate.durable.run import run
from agentstate.journals import FileJournal

if len(sys.argv) > 3:
    def dies(*args, **kwargs):
        os.kill(os.getpid(), signal.SIGKILL)
    tools.records.policy = dies
with FileJournal.open(sys.argv[1], say=sys.argv[2]) as journal:
    outcome = run(build(registry.get("claims")), journal)
    calls = [(call.tool, call.status) for call in journal.store.calls.values()]
print(json.dumps([outcome.status, outcome.result["messages"][-1].text, calls]))
"""

HOLDER = """
import sys, time
from agentstate.journals import FileJournal

with FileJournal.open(sys.argv[1], say="hi"):
    print("open")
    time.sleep(600)
"""


def turn(path: Path, text: str, *more: str) -> Any:
    env = environment(AGENTSTATE_DEMO_DELAY="0", HAYSTACK_TELEMETRY_ENABLED="false")
    return processes.run((sys.executable, "-c", TURN, str(path), text, *more), env)


def opened(path: Path, **how: Any) -> FileJournal:
    return FileJournal.open(path, **how)


def run_turn(path: Path, text: str = "hi", options: Options | None = None) -> str:
    """Run a whole turn in this process; returns the session's status."""
    with opened(path, say=text) as journal:
        return run(make_durable(sample_agents.long_run(2)), journal, options).status


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "session.jsonl"


# Processes


@pytest.mark.slow
def test_a_conversation_goes_on_in_other_processes_and_after_one_was_killed(path: Path) -> None:
    first = turn(path, "What is my policy status?")
    assert "Policy POL-8801" in first.stdout, first.stderr
    killed = turn(path, "Also check whether my deductible applies.", "and die")
    assert killed.returncode == -signal.SIGKILL
    third = turn(path, "Then look up claim CLM-1042.")
    assert third.returncode == 0, third.stderr
    status, answer, calls = json.loads(third.stdout)
    assert status == "idle"
    assert "CLM-1042" in answer
    # What was begun by the process that died was done after all: the tool is idempotent.
    assert [name for name, _ in calls][:3] == ["look_up_policy", "check_deductible", "look_up_claim"]
    assert {status for _, status in calls} == {"done"}


@pytest.mark.slow
def test_a_second_process_gets_an_error_while_the_first_has_the_file_open(path: Path) -> None:
    with processes.running((sys.executable, "-c", HOLDER, str(path)), environment()) as holder:
        holder.wait_for_output("open")
        with pytest.raises(JournalFileError, match=r"is in use by another process\. Wait for it to end"):
            opened(path, say="me too")
        before = path.read_bytes()
        holder.kill()
    assert path.read_bytes() == before
    with opened(path) as journal:
        assert [item.body["content"][0]["text"] for item in journal.load().unread] == ["hi"]


def test_one_process_cannot_open_it_twice_either(path: Path) -> None:
    with opened(path, say="hi"), pytest.raises(JournalFileError, match="in use"):
        opened(path)


def test_a_run_that_still_uses_a_closed_file_writes_nothing(path: Path) -> None:
    journal = opened(path, say="hi")
    journal.load()
    journal.close()
    before = path.read_bytes()
    with pytest.raises(LeaseLost):
        journal.end_run(NothingToDo())
    assert path.read_bytes() == before


# Files


def test_a_missing_file_is_a_new_session_and_only_its_owner_may_read_it(path: Path) -> None:
    with opened(path, inputs={"state": {"who": "Ann"}}) as journal:
        snapshot = journal.load()
    assert (snapshot.checkpoint, snapshot.unread, snapshot.inputs) == (None, (), {"state": {"who": "Ann"}})
    assert path.stat().st_mode & 0o777 == 0o600


def test_an_empty_file_is_a_new_session_too(path: Path) -> None:
    path.touch()
    assert run_turn(path) == "idle"


def test_a_new_session_has_other_idempotency_keys_also_in_a_file_of_the_same_name(path: Path) -> None:
    def keys() -> list[str]:
        run_turn(path)
        with opened(path) as journal:
            return [call.idempotency_key for call in journal.store.calls.values()]

    first = keys()
    with opened(path) as journal:
        assert [call.idempotency_key for call in journal.store.calls.values()] == first
    path.unlink()
    second = keys()
    assert len({*first, *second}) == len(first) + len(second) == 4


def test_every_record_is_a_line_of_json(path: Path) -> None:
    run_turn(path, "a\nb\u2028c\r\nd \U0001f600")
    records = [json.loads(line) for line in path.read_text().split("\n")[:-1]]
    assert records[0] == {"op": "format", "version": 1}
    assert run_turn(path, "again") == "idle"
    with opened(path) as journal:
        base = journal.load().checkpoint
        assert base is not None
        assert base.context[0].body["content"][0]["text"] == "a\nb\u2028c\r\nd \U0001f600"


@pytest.mark.slow
def test_a_file_truncated_anywhere_opens_again_and_the_turn_ends_the_same(path: Path) -> None:
    run_turn(path)
    data = path.read_bytes()
    lines = data.split(b"\n")[:-1]
    started = len(lines[0]) + 1  # from the format's own line on there is a session
    cuts = range(started, len(data), max(1, len(data) // 60))
    for cut in cuts:
        path.write_bytes(data[:cut])
        with opened(path) as journal:
            if not journal.load().unread and journal.load().checkpoint is None:
                journal.say("hi")  # what was cut off is what the user said
            durable = make_durable(sample_agents.long_run(2), policies={"fast": ToolPolicy(idempotent=True)})
            # A definition that was recorded is that of the agent without the policy, which is the same agent.
            assert run(durable, journal).status == "idle", f"cut at {cut}"
            base = journal.load().checkpoint
            assert base is not None
            texts = [part.get("text") for message in base.context for part in message.body["content"]]
            assert texts[0] == "hi"
            assert texts[-1] == "Long done."


def test_an_incomplete_last_line_is_removed(path: Path) -> None:
    run_turn(path)
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"op":"say","posi')
    with opened(path):
        pass
    assert path.read_bytes().startswith(whole + b'{"op":"open"')


@pytest.mark.slow
def test_a_file_in_which_a_line_is_missing_twice_or_moved_is_refused_and_left_as_it_is(path: Path) -> None:
    run_turn(path)
    run_turn(path, "again")
    lines = path.read_bytes().splitlines(keepends=True)
    # From the line after the format's on, and not the last, whose end is that of an earlier moment.
    for place in range(1, len(lines) - 1):
        number = place + 1
        for changed, error in (
            (lines[:place] + lines[place + 1 :], f"line {number}: line {number} is missing"),
            (
                lines[: place + 1] + lines[place:],
                f"line {number + 1}: this was written as line {number}, and was repeated or moved",
            ),
        ):
            path.write_bytes(b"".join(changed))
            with pytest.raises(JournalFileError, match=f"{error}.*Restore the file from a copy"):
                opened(path)
            with pytest.raises(JournalFileError, match=error):
                load(path)
            assert path.read_bytes() == b"".join(changed)
    path.write_bytes(b"".join(lines[:2] + lines[5:]))
    with pytest.raises(JournalFileError, match="line 3: the lines 3 to 5 are missing"):
        opened(path)
    path.write_bytes(b"".join(lines))
    assert run_turn(path, "once more") == "idle"


def test_a_file_of_a_version_that_did_not_name_the_lines_is_read_and_continued(path: Path) -> None:
    run_turn(path)
    records = [json.loads(line) for line in path.read_text().splitlines()]
    for record in records:
        record.pop("line", None)
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    assert run_turn(path, "again") == "idle"
    lines = path.read_bytes().splitlines(keepends=True)
    assert json.loads(lines[len(records)])["line"] == len(records) + 1
    path.write_bytes(b"".join(lines[: len(records)] + lines[len(records) + 1 :]))
    with pytest.raises(JournalFileError, match=f"line {len(records) + 1} is missing"):
        opened(path)


def test_an_incomplete_first_line_is_a_new_session(path: Path) -> None:
    path.write_bytes(b'{"op":"form')
    assert run_turn(path) == "idle"


@pytest.mark.parametrize(
    "content, error",
    [
        (b"dear diary", "is not a journal of AgentState. Use another file."),
        (b"dear diary\nday two", "is not a journal"),
        (b"\x89PNG\r\n\x1a\n\x00\x00", "is not a journal"),
        (b'{"conversation": []}\n{"torn', "is not a journal"),
        (b"[]\n", "is not a journal"),
        (b'"op"', "is not a journal"),
        (b'{"op":"format","version":99}\n{"torn', "is a journal of version 99; this program reads 1. Update"),
        (
            b'{"op":"format","version":1}\nnonsense\n{"torn',
            "line 2: this is not a record of a journal. Restore",
        ),
        (b'{"op":"format","version":1}\n{"op":"nonsense"}\n', "line 2"),
        (b'{"op":"format","version":1}\n{"op":"call","call":7,"changes":{}}\n', "line 2"),
        (b'{"op":"format","version":1}\n{}\n', "line 2"),
    ],
    ids=range(11),
)
def test_any_other_file_is_refused_and_left_as_it_is(path: Path, content: bytes, error: str) -> None:
    path.write_bytes(content)
    with pytest.raises(JournalFileError, match=error):
        opened(path, say="hi")
    assert path.read_bytes() == content
    path.unlink()
    assert run_turn(path) == "idle"  # nothing of it is kept open


@pytest.mark.parametrize("name", ["no/such/folder/session.jsonl", "."])
def test_a_path_where_no_file_can_be_is_an_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(JournalFileError, match="cannot be opened: "):
        opened(tmp_path / name)


def test_a_full_disk_stops_the_run_and_loses_nothing_that_was_recorded(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line that did not fit is removed, or what follows it could not be read."""
    writes = 0
    with opened(path, say="hi") as journal:
        file, real = journal.store._file, journal.store._file.write

        class Full:
            """The file, on a disk that takes half of the seventh line and no more."""

            def write(self, data: memoryview) -> int:
                nonlocal writes
                writes += 1
                if writes == 7:
                    return real(data[: len(data) // 2])
                if writes > 7:
                    raise OSError(errno.ENOSPC, "No space left on device")
                return real(data)

            def __getattr__(self, name: str) -> Any:
                return getattr(file, name)

        monkeypatch.setattr(journal.store, "_file", Full())
        durable = make_durable(sample_agents.long_run(3), policies={"fast": ToolPolicy(idempotent=True)})
        with pytest.raises(JournalUnavailable, match=r"cannot be written: .*No space left on device"):
            run(durable, journal)
        with pytest.raises(LeaseLost):
            journal.end_run(NothingToDo())
    assert path.read_bytes().endswith(b"}\n")
    with opened(path) as journal:
        outcome = run(durable, journal)
    assert outcome.status == "idle"
    assert [each for each in effects if each.startswith("model")] == [f"model({n})" for n in range(4)]


# Sessions


def test_several_turns_are_one_conversation(path: Path) -> None:
    for text in ("one", "two", "three"):
        assert run_turn(path, text) == "idle"
    with opened(path) as journal:
        base = journal.load().checkpoint
    assert base is not None
    users = [m.body["content"][0]["text"] for m in base.context if m.body["role"] == "user"]
    assert users == ["one", "two", "three"]


def test_what_cannot_be_stored_of_a_text_is_replaced_where_it_is_said(path: Path) -> None:
    with opened(path, say="one\ud800") as journal:
        journal.say("two\x00")
    assert [message.body["content"] for message in load(path).unread] == [
        [{"text": "one\ufffd"}],
        [{"text": "two\ufffd"}],
    ]


def test_a_call_in_doubt_is_decided_in_the_next_process(path: Path) -> None:
    def pay() -> str:
        raise Died

    agent = sample_agents.one_tool(pay)
    with opened(path, say="hi") as journal, pytest.raises(Died):
        run(make_durable(agent), journal)
    with opened(path) as journal:
        assert run(make_durable(agent), journal).status == "waiting"
    with opened(path) as journal:
        with pytest.raises(LookupError, match="No call 'c9' waits"):
            journal.decide("c9", result="x")
        with pytest.raises(LookupError, match=r"'x1' is in doubt: give its result, again=True, or skip"):
            journal.decide("x1", approve=True)
        journal.decide("x1", result="it was paid")
        assert run(make_durable(agent), journal).status == "idle"


def test_a_call_that_needs_approval_is_approved_in_the_next_process(path: Path) -> None:
    policies = {"refund": ToolPolicy(approval=True)}
    with opened(path, say="hi") as journal:
        assert run(make_durable(sample_agents.refunds(), policies=policies), journal).status == "waiting"
    with opened(path) as journal:
        journal.decide("r1", approve=True, arguments={"order": "A1", "amount": 5})
        journal.decide("r2", approve=False, message="Not that one.")
        assert run(make_durable(sample_agents.refunds(), policies=policies), journal).status == "idle"
    assert [each for each in effects if each.startswith("refund")] == ["refund(A1,5)"]


def test_a_session_whose_agent_changed_in_the_middle_goes_on_when_resumed(path: Path) -> None:
    assert run_turn(path, options=Options(slice_is_over=lambda: True)) == "queued"
    other = make_durable(sample_agents.long_run(2, system_prompt="Be brief."))
    with opened(path) as journal:
        outcome = run(other, journal)
        assert outcome.status == "waiting"
        assert "has changed since the session last ran" in outcome.why
    with opened(path) as journal:
        journal.resume()
    with opened(path) as journal:
        assert run(other, journal).status == "idle"
        with pytest.raises(LookupError):
            journal.resume()
    assert [each for each in effects if each.startswith("fast")] == ["fast(q0)", "fast(q1)"]


def test_its_folder_may_be_any_that_this_process_can_write_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_turn(Path("here.jsonl")) == "idle"
    assert os.path.exists("here.jsonl")
