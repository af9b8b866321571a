"""Sessions give way to new ones, and to what people have asked for, before their slice is over."""

import logging
from typing import Any

import pytest
import redis
from haystack.components.agents import Agent
from haystack.dataclasses import ToolCall
from haystack.tools import Tool

from agentstate.celery import LATER_QUEUE, QUEUE
from sessions_app.runtime import urgent, worker
from sessions_app.runtime.urgent import AWAY_SECONDS, LOOK_SECONDS, Urgent
from tests.driving import Desk
from tests.sample_agents import scripted


class Broker:
    def __init__(self, *answers: int | Exception) -> None:
        self.answers = list(answers)

    def llen(self, name: str) -> int:
        assert name == QUEUE
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(urgent, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_as_many_sessions_give_way_as_wake_ups_wait(clock: Clock) -> None:
    waiting = Urgent(Broker(2, 0, 1))
    assert [waiting.waits() for _ in range(4)] == [True, True, False, False]
    clock.now += LOOK_SECONDS
    assert waiting.waits() is False
    clock.now += LOOK_SECONDS
    assert [waiting.waits() for _ in range(2)] == [True, False]


def test_what_waited_at_the_last_look_is_forgotten_at_the_next(clock: Clock) -> None:
    waiting = Urgent(Broker(5, 0))
    assert waiting.waits()
    clock.now += LOOK_SECONDS
    assert not waiting.waits()


def test_a_broker_that_does_not_answer_is_left_alone_for_a_while(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    waiting = Urgent(Broker(redis.ConnectionError("away"), 1))
    with caplog.at_level(logging.WARNING):
        assert not waiting.waits()
        clock.now += AWAY_SECONDS - 1
        assert not waiting.waits()
    assert len(caplog.records) == 1
    clock.now += 1
    assert waiting.waits()


def test_who_asks_while_another_run_does_is_not_held_up(clock: Clock) -> None:
    class Slow:
        def llen(self, name: str) -> int:
            assert waiting.waits() is False
            return 1

    waiting = Urgent(Slow())
    assert waiting.waits() is True


def test_the_queue_is_that_of_new_sessions_and_not_that_of_sessions_that_gave_way(redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as server:
        server.rpush(LATER_QUEUE, "one")
        assert not Urgent(server).waits()
        server.rpush(QUEUE, "one")
        assert Urgent(server).waits()


def test_while_there_are_more_sessions_than_threads_the_wake_ups_of_those_that_gave_way_do_not_pile_up(
    redis_url: str, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.REDIS_URL = redis_url
    monkeypatch.setattr(urgent, "MOST_LATER", 3)
    with redis.Redis.from_url(redis_url, decode_responses=True) as server:
        monkeypatch.setattr(urgent, "_client", lambda: server)
        # As kombu does: workers take the messages from the other end.
        for number in range(5):
            server.lpush(LATER_QUEUE, number)
        urgent.forget_old_wake_ups()
        assert server.lrange(LATER_QUEUE, 0, -1) == ["4", "3", "2"]


def test_nothing_is_asked_while_a_thread_is_free_or_without_a_broker(
    monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    monkeypatch.setattr(urgent, "_of_this_process", lambda: Urgent(Broker(1)))
    settings.REDIS_URL = ""
    assert not urgent.urgent_waits()
    settings.REDIS_URL = "redis://of-this-test"
    monkeypatch.setattr(urgent, "is_busy", lambda: False)
    assert not urgent.urgent_waits()
    monkeypatch.setattr(urgent, "is_busy", lambda: True)
    assert urgent.urgent_waits()


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
