"""A conversation is loaded without collections of garbage on the way, and they go on behind it, whatever happens."""

import gc
import threading
from typing import Any

import pytest
from haystack.components.agents import Agent
from haystack.dataclasses import ChatMessage

from agentstate.durable import collector
from agentstate.durable.agent import make_durable
from agentstate.durable.port import JournalUnavailable
from agentstate.durable.records import Snapshot
from agentstate.durable.run import run
from agentstate.journals import MemoryJournal
from tests.sample_agents import scripted


class WatchedJournal(MemoryJournal):
    """Notes whether the collector runs while the session is read."""

    collected: bool | None = None
    available = True

    def load(self) -> Snapshot:
        self.collected = gc.isenabled()
        if not self.available:
            raise JournalUnavailable("away")
        return super().load()


def opened() -> WatchedJournal:
    journal = MemoryJournal.open(say="Hello.")
    return WatchedJournal(journal.store, journal._epoch)


def test_a_session_is_read_in_a_pause_that_has_ended_when_the_model_is_asked() -> None:
    agent, at_the_model = Agent(chat_generator=scripted("Hello!")), []
    reply = agent.chat_generator.response_fn  # type: ignore[attr-defined]

    def answer(messages: list[ChatMessage], tools: Any = None) -> str | ChatMessage:
        at_the_model.append(gc.isenabled())
        answered: str | ChatMessage = reply(messages)
        return answered

    agent.chat_generator.response_fn = answer  # type: ignore[attr-defined]
    journal = opened()
    assert run(make_durable(agent), journal).status == "idle"
    assert (journal.collected, at_the_model) == (False, [True])


def test_the_collector_goes_on_where_a_session_cannot_be_read() -> None:
    journal = opened()
    journal.available = False
    with pytest.raises(JournalUnavailable):
        run(make_durable(Agent(chat_generator=scripted("Hello!"))), journal)
    assert (journal.collected, gc.isenabled()) == (False, True)


def test_no_garbage_is_collected_inside_a_pause_and_again_behind_it() -> None:
    with collector.paused():
        assert not gc.isenabled()
        with collector.paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_a_pause_of_another_thread_neither_ends_this_one_nor_prolongs_it() -> None:
    inside, ends = threading.Event(), threading.Event()

    def load() -> None:
        with collector.paused():
            inside.set()
            ends.wait(60)

    other = threading.Thread(target=load)
    with collector.paused():
        other.start()
        assert inside.wait(60)
        assert not gc.isenabled()
    assert gc.isenabled()
    ends.set()
    other.join()
    assert gc.isenabled()


def test_a_collector_that_somebody_has_turned_off_stays_off() -> None:
    gc.disable()
    try:
        with collector.paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
    finally:
        gc.enable()
