"""Ctrl+C while a record is written to a journal file loses no session: whoever catches it can run the session again."""

import fcntl
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentstate import DurableAgent, ToolPolicy
from agentstate.durable.port import JournalUnavailable, LeaseLost
from agentstate.durable.run_end import NothingToDo
from agentstate.journals import FileJournal
from agentstate.journals.file import load
from tests import sample_agents

pytestmark = pytest.mark.usefixtures("no_effects")

IDEMPOTENT = {"fast": ToolPolicy(idempotent=True)}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "anna.jsonl"


@pytest.fixture
def journal(path: Path) -> Iterator[FileJournal]:
    """A journal that the caller has opened, as in a notebook."""
    with FileJournal.open(path) as opened:
        yield opened


def session(journal: FileJournal) -> DurableAgent:
    return DurableAgent(sample_agents.long_run(2), journal, policies=IDEMPOTENT)


class Interruption:
    """Ctrl+C, which reaches the main thread alone, after a function was called there for the n-th time."""

    def __init__(self, function: Any, at: int) -> None:
        self.function, self.at, self.calls = function, at, 0

    def __call__(self, *arguments: Any) -> Any:
        result = self.function(*arguments)
        if threading.current_thread() is threading.main_thread():
            self.calls += 1
            if self.calls == self.at:
                raise KeyboardInterrupt
        return result


def flushes_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """How often the main thread flushes the file in a run that nobody interrupts."""
    count = Interruption(os.fsync, 0)
    with FileJournal.open(tmp_path / "counted.jsonl") as counted, monkeypatch.context() as patched:
        patched.setattr(os, "fsync", count)
        session(counted).run("hi")
    return count.calls


@pytest.mark.slow
def test_a_run_that_is_interrupted_while_any_record_is_flushed_can_be_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushes = flushes_of_a_run(tmp_path, monkeypatch)
    assert flushes >= 5
    for at in range(1, flushes + 1):
        path = tmp_path / f"anna-{at}.jsonl"
        with FileJournal.open(path) as journal:
            durable = session(journal)
            with monkeypatch.context() as patched:
                patched.setattr(os, "fsync", Interruption(os.fsync, at))
                with pytest.raises(KeyboardInterrupt):
                    durable.run("hi")
            outcome = durable.run("hi")
            assert outcome.finished, at
            assert [message.text for message in durable.history() if message.is_from("user")] == ["hi"]
        stored = load(path)
        assert stored.messages == journal.store.messages
        assert stored.turns.unfinished is None
        assert DurableAgent(sample_agents.long_run(2), path, policies=IDEMPOTENT).run("more").finished


def test_a_run_that_still_uses_the_journal_of_an_interrupted_write_writes_nothing_more(
    path: Path, journal: FileJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = path.read_bytes()
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", Interruption(os.fsync, 1))
        with pytest.raises(KeyboardInterrupt):
            journal.say("hi")
    assert path.read_bytes() == before
    with pytest.raises(LeaseLost):
        journal.end_run(NothingToDo())
    assert path.read_bytes() == before


def test_after_an_interruption_between_the_flush_and_the_end_of_a_write_the_file_has_to_be_opened_again(
    path: Path, journal: FileJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(journal.store, "_apply", Interruption(journal.store._apply, 1))
        with pytest.raises(KeyboardInterrupt):
            journal.say("hi")
    after = path.read_bytes()
    with pytest.raises(
        JournalUnavailable, match=r"was interrupted\. Close this journal, and open the file again"
    ):
        session(journal).run("more")
    assert path.read_bytes() == after
    journal.close()
    with FileJournal.open(path) as again:
        assert session(again).run("more").finished
        assert [message.text for message in session(again).history() if message.is_from("user")] == [
            "hi",
            "more",
        ]


def test_where_an_incomplete_line_cannot_be_removed_the_file_has_to_be_opened_again(
    path: Path, journal: FileJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = journal.store._file

    class Broken:
        """The file on a disk that takes half of a line, and then fails."""

        def write(self, data: memoryview) -> int:
            file.write(data[: len(data) // 2])
            raise OSError("the disk has failed")

        def truncate(self, size: int) -> int:
            raise OSError("the disk has failed")

        def __getattr__(self, name: str) -> Any:
            return getattr(file, name)

    with monkeypatch.context() as patched:
        patched.setattr(journal.store, "_file", Broken())
        with pytest.raises(JournalUnavailable, match="the disk has failed"):
            journal.say("hi")
    with pytest.raises(JournalUnavailable, match="open the file again"):
        journal.say("hi")
    journal.close()
    assert DurableAgent(sample_agents.plain_talk(), path).run("hi").text == "Hello."


def test_after_an_interruption_while_it_is_locked_the_file_can_be_opened(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(fcntl, "flock", Interruption(fcntl.flock, 1))
        with pytest.raises(KeyboardInterrupt) as kept:  # as a notebook keeps the last exception
            FileJournal.open(path)
    assert DurableAgent(sample_agents.plain_talk(), path).run("hi").text == "Hello."
    assert kept.type is KeyboardInterrupt
