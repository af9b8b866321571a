"""Sessions give way to what waits in the broker: to what a person waits for soon, else behind their slice."""

import logging
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import redis
from haystack.components.agents import Agent
from haystack.dataclasses import ToolCall
from haystack.tools import Tool

from agentstate.celery import LATER_QUEUE, QUEUE, QUEUES
from sessions_app.runtime import queued_messages, worker
from sessions_app.runtime.queued_messages import AWAY_SECONDS, LOOK_SECONDS, Queues
from tests.driving import Desk
from tests.sample_agents import scripted


class Broker:
    """One that has so many messages in its one queue, look by look."""

    def __init__(self, *answers: int | Exception) -> None:
        self.answers = list(answers)

    def pipeline(self, *, transaction: bool) -> Any:
        return nullcontext(self)

    def llen(self, name: str) -> None:
        assert name == QUEUE

    def execute(self) -> list[int]:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return [answer]


def one_queue(*answers: int | Exception) -> Queues:
    return Queues(Broker(*answers), [QUEUE])


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(queued_messages, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_as_many_sessions_give_way_as_wake_ups_wait(clock: Clock) -> None:
    waiting = one_queue(2, 0, 1)
    assert [waiting.has_message() for _ in range(4)] == [True, True, False, False]
    clock.now += LOOK_SECONDS
    assert waiting.has_message() is False
    clock.now += LOOK_SECONDS
    assert [waiting.has_message() for _ in range(2)] == [True, False]


def test_what_waited_at_the_last_look_is_forgotten_at_the_next(clock: Clock) -> None:
    waiting = one_queue(5, 0)
    assert waiting.has_message()
    clock.now += LOOK_SECONDS
    assert not waiting.has_message()


def test_a_broker_that_does_not_answer_is_left_alone_for_a_while(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    waiting = one_queue(redis.ConnectionError("away"), 1)
    with caplog.at_level(logging.WARNING):
        assert not waiting.has_message()
        clock.now += AWAY_SECONDS - 1
        assert not waiting.has_message()
    assert len(caplog.records) == 1
    clock.now += 1
    assert waiting.has_message()


def test_who_asks_while_another_run_does_is_not_held_up(clock: Clock) -> None:
    class Slow(Broker):
        def execute(self) -> list[int]:
            assert waiting.has_message() is False
            return [1]

    waiting = Queues(Slow(), [QUEUE])
    assert waiting.has_message() is True


@pytest.fixture
def busy(redis_url: str, settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[redis.Redis]:
    """A process without a free thread, and its broker."""
    settings.REDIS_URL = redis_url
    monkeypatch.setattr(queued_messages, "is_busy", lambda: True)
    with redis.Redis.from_url(redis_url) as server:
        monkeypatch.setattr(queued_messages, "_queues", lambda *names: Queues(server, names))
        yield server


@pytest.mark.parametrize("queue", QUEUES)
def test_what_a_person_waits_for_is_urgent_and_behind_its_slice_a_session_gives_way_to_anything(
    busy: redis.Redis, queue: str
) -> None:
    assert not queued_messages.urgent_waits()
    assert not queued_messages.others_wait()
    busy.rpush(queue, "one")
    assert queued_messages.urgent_waits() == (queue == QUEUE)
    assert queued_messages.others_wait()


def test_while_a_thread_is_free_no_session_gives_way(
    busy: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queued_messages, "is_busy", lambda: False)
    busy.rpush(QUEUE, "one")
    assert not queued_messages.urgent_waits()
    assert not queued_messages.others_wait()


def test_where_no_broker_tells_what_waits_sessions_give_way_behind_their_slice(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.REDIS_URL = ""
    monkeypatch.setattr(queued_messages, "is_busy", lambda: True)
    assert not queued_messages.urgent_waits()
    assert queued_messages.others_wait()


def test_while_there_are_more_sessions_than_threads_the_wake_ups_of_those_that_gave_way_do_not_pile_up(
    redis_url: str, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.REDIS_URL = redis_url
    monkeypatch.setattr(queued_messages, "MOST_LATER", 3)
    with redis.Redis.from_url(redis_url, decode_responses=True) as server:
        monkeypatch.setattr(queued_messages, "_client", lambda: server)
        # As kombu does: workers take the messages from the other end.
        for number in range(5):
            server.lpush(LATER_QUEUE, number)
        queued_messages.forget_old_wake_ups()
        assert server.lrange(LATER_QUEUE, 0, -1) == ["4", "3", "2"]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("least, became", [(0.0, "queued"), (600.0, "idle")])
def test_a_session_gives_way_within_its_slice_once_it_has_run_for_some_time(
    least: float, became: str, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "LEAST_SECONDS", least)
    look = Tool("look", "Looks.", {"type": "object", "properties": {}}, lambda: "seen")
    model = scripted([ToolCall("look", {}, id="c1")], "Done.")
    desk.agent(lambda: Agent(chat_generator=model, tools=[look]))
    assert desk.drive(desk.start(), slice_seconds=600, urgent_waits=lambda: True) == became
