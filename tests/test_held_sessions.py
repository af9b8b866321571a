"""A run that is interrupted or cancelled lets go of its session, and nobody waits for a session on an event loop."""

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from haystack.components.agents import Agent
from haystack.dataclasses import ToolCall
from haystack.tools import Tool

from agentstate import DurableAgent, SessionInUse, ToolPolicy
from agentstate.durable import steps
from agentstate.durable.steps import JournalThread
from agentstate.journals import MemoryJournal
from agentstate.library.places import FilePlace
from tests import sample_agents
from tests.sample_agents import scripted

pytestmark = pytest.mark.usefixtures("no_effects")

SECONDS = 5.0
APPROVED = {"it": ToolPolicy(approval=True)}


def waiting(function: Callable[..., Any]) -> Agent:
    """An agent that calls the async function once as a tool, and then says "Over.". `run` has another function."""
    schema: dict[str, Any] = {"type": "object", "properties": {}}
    it = Tool(name="it", description="it", parameters=schema, function=lambda: "", async_function=function)
    return Agent(chat_generator=scripted([ToolCall("it", {}, id="x1")], "Over."), tools=[it])


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
        assert thread._executor is not None
        thread._executor.shutdown(wait=True)  # until then the thread itself may still hold it
        assert freed() is None


WAYS: dict[str, Callable[[DurableAgent], Any]] = {
    "decide": lambda shop: shop.decide("c1", approve=True),
    "run": lambda shop: shop.run("again"),
    "resume": lambda shop: shop.resume(),
}


@pytest.mark.parametrize("way", WAYS)
def test_what_would_wait_for_a_run_on_its_event_loop_is_refused_and_the_run_goes_on(way: str) -> None:
    # In a thread of its own, which the test does not wait for if the loop hangs.
    outcomes: list[Any] = []

    async def script() -> None:
        entered, may_end = asyncio.Event(), asyncio.Event()

        async def wait() -> str:
            entered.set()
            await may_end.wait()
            return "waited"

        shop = DurableAgent(waiting(wait), MemoryJournal.open(session_id="anna"))
        running = asyncio.create_task(shop.run_async("hi"))
        await entered.wait()
        with pytest.raises(SessionInUse, match=r"The session 'anna' is being run, .* the event loop"):
            WAYS[way](shop)
        may_end.set()
        outcomes.append((await running).text)

    ends = threading.Thread(target=lambda: asyncio.run(script()), daemon=True)
    ends.start()
    ends.join(SECONDS)
    assert outcomes == ["Over."]


def test_in_a_thread_a_decision_waits_for_the_run_without_holding_up_the_loop() -> None:
    async def script() -> str:
        entered, may_end = asyncio.Event(), asyncio.Event()

        async def wait() -> str:
            entered.set()
            await may_end.wait()
            return "waited"

        shop = DurableAgent(waiting(wait), MemoryJournal.open())
        running = asyncio.create_task(shop.run_async("hi"))
        await entered.wait()
        deciding = asyncio.create_task(asyncio.to_thread(shop.decide, "c1", approve=True))
        may_end.set()
        text = (await running).text
        with pytest.raises(LookupError, match="No call 'c1' waits"):
            await deciding
        return text

    assert asyncio.run(asyncio.wait_for(script(), SECONDS)) == "Over."


def test_a_session_that_nobody_runs_can_be_run_and_decided_on_an_event_loop() -> None:
    async def script() -> str:
        shop = DurableAgent(sample_agents.one_tool(lambda: "done"), MemoryJournal.open(), policies=APPROVED)
        assert not shop.run("hi").finished
        shop.decide("x1", approve=True)
        return shop.resume().text

    assert asyncio.run(script()) == "Over."
