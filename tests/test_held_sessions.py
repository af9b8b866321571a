"""A run that is interrupted or cancelled lets go of its session, at whatever moment that happens."""

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from agentstate import DurableAgent
from agentstate.durable import steps
from agentstate.durable.steps import JournalThread
from agentstate.journals import MemoryJournal
from agentstate.library.places import FilePlace
from tests import sample_agents

pytestmark = pytest.mark.usefixtures("no_effects")

SECONDS = 5.0


class SlowPlace(FilePlace):
    """A file that takes as long to be read as the test wants."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.entered, self.may_open = threading.Event(), threading.Event()

    def open(self) -> AbstractContextManager[MemoryJournal]:
        self.entered.set()
        assert self.may_open.wait(SECONDS)
        return super().open()


async def turned(event: threading.Event) -> None:
    async with asyncio.timeout(SECONDS):
        while not event.is_set():
            await asyncio.sleep(0)


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """It would free what only a cycle of references holds."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def test_a_run_that_is_cancelled_while_its_journal_is_opened_lets_go_of_the_session(tmp_path: Path) -> None:
    path = tmp_path / "anna.jsonl"
    place = SlowPlace(path)
    shop = DurableAgent(sample_agents.plain_talk(), place)

    async def script() -> list[str]:
        running = asyncio.create_task(shop.run_async("hi"))
        await turned(place.entered)
        running.cancel()
        await asyncio.sleep(0)
        place.may_open.set()
        with pytest.raises(asyncio.CancelledError):
            await running
        # The other object first: it is refused where the file is still locked, and does not wait.
        other = DurableAgent(sample_agents.plain_talk(), path)
        return [(await other.run_async("hi")).text, (await shop.run_async("and then?")).text]

    with no_garbage_collection():
        assert asyncio.run(script()) == ["Hello.", "Hello."]


def test_a_run_that_is_interrupted_between_its_journal_and_its_agent_lets_go_of_the_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "anna.jsonl"
    shop = DurableAgent(sample_agents.plain_talk(), path)
    real = steps._advance

    def interrupted(resume: Callable[[Any], Any], value: Any) -> tuple[bool, Any]:
        real(resume, value)
        raise KeyboardInterrupt

    monkeypatch.setattr(steps, "_advance", interrupted)
    with pytest.raises(KeyboardInterrupt) as kept:  # as a notebook keeps the last exception
        shop.run("hi")
    monkeypatch.undo()
    assert DurableAgent(sample_agents.plain_talk(), path).run("hi").text == "Hello."
    assert shop.run("and then?").text == "Hello."
    assert kept.type is KeyboardInterrupt


def test_what_a_cancelled_call_was_given_is_freed_without_the_garbage_collector() -> None:
    class Given:
        pass

    entered, may_end = threading.Event(), threading.Event()

    def call(given: Given) -> None:
        entered.set()
        assert may_end.wait(SECONDS)

    async def script(thread: JournalThread) -> "weakref.ref[Given]":
        given = Given()
        freed = weakref.ref(given)
        running = asyncio.create_task(thread.run(call, given))
        del given
        await turned(entered)
        running.cancel()
        await asyncio.sleep(0)
        may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await running
        return freed

    with no_garbage_collection():
        thread = JournalThread()
        freed = asyncio.run(script(thread))
        thread.close()
        assert freed() is None
