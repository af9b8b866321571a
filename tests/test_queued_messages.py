"""Sessions give way to what waits in the broker: to what a person waits for soon, else behind their slice."""

import logging
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import redis
from haystack.components.agents import Agent
from haystack.dataclasses import ToolCall
from haystack.tools import Tool

from agentstate import worker_threads
from agentstate.celery import app
from agentstate.queues import FOUND_QUEUE, LATER_QUEUE, QUEUE, QUEUES
from agentstate.worker_threads import WorkerThreads, use
from sessions_app.runtime import queued_messages, worker
from sessions_app.runtime.queued_messages import AWAY_SECONDS, LOOK_SECONDS, Queues
from tests.driving import Desk
from tests.sample_agents import scripted


class Broker:
    """One that has so many messages in `QUEUE`, look by look."""

    def __init__(self, *answers: int | Exception) -> None:
        self.answers = list(answers)

    def pipeline(self, *, transaction: bool) -> Any:
        return nullcontext(self)

    def llen(self, name: str) -> None:
        assert name in QUEUES

    def execute(self) -> list[int]:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return [answer if name == QUEUE else 0 for name in QUEUES]


class Asked:
    """The queue of one broker, asked for messages."""

    def __init__(self, broker: Broker) -> None:
        self._queues = Queues(broker)

    def has_message(self, *, if_refused: bool = False) -> bool:
        return self._queues.has_message([QUEUE], if_refused=if_refused)


def one_queue(*answers: int | Exception) -> Asked:
    return Asked(Broker(*answers))


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


def test_a_broker_that_is_away_is_asked_again_within_seconds_and_sessions_go_on_meanwhile(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    waiting = one_queue(redis.ConnectionError("away"), redis.TimeoutError("away"), 1, redis.ConnectionError())
    with caplog.at_level(logging.WARNING):
        assert not waiting.has_message(if_refused=True)
        clock.now += AWAY_SECONDS - 0.1
        assert not waiting.has_message(if_refused=True)
        clock.now += 0.1
        assert not waiting.has_message(if_refused=True)
        assert len(caplog.records) == 1
        clock.now += AWAY_SECONDS
        assert waiting.has_message()
        clock.now += LOOK_SECONDS
        assert not waiting.has_message()
    assert len(caplog.records) == 2
    assert AWAY_SECONDS <= 5


def test_where_the_broker_does_not_say_what_waits_a_session_gives_way_behind_its_slice(clock: Clock) -> None:
    waiting = one_queue(redis.exceptions.NoPermissionError("no permission to run 'llen'"), 0)
    for _ in range(3):
        assert waiting.has_message(if_refused=True)
        assert not waiting.has_message(if_refused=False)
    clock.now += AWAY_SECONDS
    assert not waiting.has_message(if_refused=True)


def test_who_asks_while_another_run_does_is_not_held_up(clock: Clock) -> None:
    class Slow(Broker):
        def execute(self) -> list[int]:
            assert waiting.has_message() is False
            return [0, 1, 0, 0]

    waiting = Asked(Slow())
    assert waiting.has_message() is True


@pytest.fixture
def busy(redis_url: str, settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[redis.Redis]:
    """A process that does not know of any free thread, and its broker."""
    settings.REDIS_URL = redis_url
    with redis.Redis.from_url(redis_url) as server:
        monkeypatch.setattr(queued_messages, "_queues", lambda: Queues(server))
        yield server


@pytest.mark.parametrize("queue", QUEUES)
def test_what_a_person_waits_for_is_urgent_and_behind_its_slice_a_session_gives_way_to_anything(
    busy: redis.Redis, queue: str
) -> None:
    assert not queued_messages.urgent_waits(None)
    assert not queued_messages.others_wait()
    busy.rpush(queue, "one")
    assert queued_messages.urgent_waits(None) == (queue == QUEUE)
    assert queued_messages.others_wait()


def test_what_waits_in_a_queue_that_its_worker_does_not_read_is_left_to_others(busy: redis.Redis) -> None:
    queues: Any = app.amqp.queues
    queues.select([LATER_QUEUE])
    try:
        busy.rpush(QUEUE, "one")
        assert not queued_messages.urgent_waits(None)
        assert not queued_messages.others_wait()
        busy.rpush(LATER_QUEUE, "one")
        assert queued_messages.others_wait()
    finally:
        queues._consume_from = None


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    """So many tasks run in a worker of two ordinary threads and one reserved."""

    def running(tasks: int) -> None:
        now = WorkerThreads(2, 1)
        for _ in range(tasks):
            now.begin()
        use(now)

    yield running
    use(WorkerThreads())


@pytest.mark.parametrize(
    "tasks, queue, at_once, behind_its_slice",
    [
        (1, QUEUE, False, False),
        (1, LATER_QUEUE, False, False),
        (2, QUEUE, False, False),
        (2, FOUND_QUEUE, False, True),
        (3, QUEUE, True, True),
        (3, LATER_QUEUE, False, True),
    ],
)
def test_a_session_gives_way_to_what_no_free_thread_may_run(
    tasks: int,
    queue: str,
    at_once: bool,
    behind_its_slice: bool,
    busy: redis.Redis,
    threads: Callable[[int], None],
) -> None:
    threads(tasks)
    busy.rpush(queue, "one")
    assert queued_messages.urgent_waits(None) == at_once
    if at_once:
        busy.rpush(queue, "another")
    queued_messages._queues()._look_at = float("-inf")
    assert queued_messages.others_wait() == behind_its_slice


def test_where_no_broker_tells_what_waits_sessions_give_way_behind_their_slice_while_no_thread_is_free(
    settings: Any, threads: Callable[[int], None]
) -> None:
    settings.REDIS_URL = ""
    assert queued_messages.others_wait()
    threads(1)
    assert not queued_messages.others_wait()
    threads(2)
    assert queued_messages.others_wait()
    assert not queued_messages.urgent_waits(None)


def test_a_session_gives_way_for_one_that_lasts_in_a_reserved_thread_though_nothing_waits(
    busy: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = WorkerThreads(1, 2)
    tasks = [now.begin(), now.begin()]
    for task in tasks:
        now.run_here(task)
        now.session_here()
    use(now)
    try:
        assert not queued_messages.urgent_waits(tasks[0])
        monkeypatch.setattr(worker_threads, "SHORT_SECONDS", 0)
        assert [*map(queued_messages.urgent_waits, tasks)] == [True, False]
    finally:
        use(WorkerThreads())


@pytest.mark.parametrize("queue", [FOUND_QUEUE, LATER_QUEUE])
def test_while_there_are_more_sessions_than_threads_wake_ups_that_the_sweep_sends_again_do_not_pile_up(
    queue: str, redis_url: str, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.REDIS_URL = redis_url
    monkeypatch.setattr(queued_messages, "MOST_KEPT", 3)
    with redis.Redis.from_url(redis_url, decode_responses=True) as server:
        monkeypatch.setattr(queued_messages, "_client", lambda: server)
        # As kombu does: workers take the messages from the other end.
        for number in range(5):
            server.lpush(queue, number)
        queued_messages.forget_old_wake_ups()
        assert server.lrange(queue, 0, -1) == ["4", "3", "2"]


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
