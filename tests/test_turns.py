"""Threads that take turns: few work at once, and whoever waits keeps nobody from working."""

import asyncio
import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from agentstate.turns import PATIENCE_SECONDS, Turns
from tools.services import wait_for


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as executor:
        yield executor


def busy(threads: ThreadPoolExecutor, at_once: int, looks: list[int] | None = None) -> Turns:
    """Of a process that takes all the CPU of one thread.

    :param looks: Gets longer each time that it is looked whether others can begin.
    """
    seen = [] if looks is None else looks

    def used() -> float:
        seen.append(len(seen))
        return float(len(seen))

    # The time stands still, so nobody works for long.
    return Turns(threads, at_once=at_once, clock=lambda: 0.0, cpu=used)


def idle(threads: ThreadPoolExecutor, at_once: int) -> Turns:
    """Of a process that takes no CPU: all who work wait for something."""
    clock = itertools.count()
    return Turns(threads, at_once=at_once, clock=lambda: next(clock), cpu=lambda: 0.0)


def slow(threads: ThreadPoolExecutor, at_once: int) -> Turns:
    """Of a process that takes all the CPU of one thread, with jobs that all take long."""
    clock = itertools.count(step=PATIENCE_SECONDS)
    return Turns(threads, at_once=at_once, clock=lambda: next(clock), cpu=lambda: next(clock))


class Job:
    """Waits until it is released."""

    def __init__(self) -> None:
        self.began, self.released = threading.Event(), threading.Event()

    def __call__(self) -> str:
        self.began.set()
        assert self.released.wait(30)
        return "done"


def test_two_work_at_once_and_the_others_follow_in_their_order(threads):
    looks: list[int] = []
    turns = busy(threads, 2, looks)
    jobs = [Job() for _ in range(5)]

    async def scenario() -> None:
        futures = [turns.submit(job) for job in jobs]
        for number, job in enumerate(jobs):
            wait_for(job.began.is_set, "its turn")
            later, before = jobs[number + 2 :], len(looks)
            while later and len(looks) < before + 4:
                await asyncio.sleep(0)
            assert not any(other.began.is_set() for other in later)
            job.released.set()
            assert await asyncio.wrap_future(futures[number]) == "done"

    asyncio.run(scenario())


@pytest.mark.parametrize("make", [idle, slow])
def test_those_who_wait_or_work_for_long_keep_nobody_waiting(threads, make):
    turns = make(threads, 1)
    met = threading.Barrier(5)

    async def scenario() -> None:
        futures = [turns.submit(lambda: met.wait(30)) for _ in range(5)]
        assert sorted(await asyncio.gather(*map(asyncio.wrap_future, futures))) == [0, 1, 2, 3, 4]

    asyncio.run(scenario())


def test_what_is_cancelled_before_its_turn_is_not_called(threads):
    turns = busy(threads, 1)
    first, cancelled, last = Job(), Job(), Job()

    async def scenario() -> None:
        futures = [turns.submit(job) for job in (first, cancelled, last)]
        assert futures[1].cancel()
        last.released.set()
        first.released.set()
        assert await asyncio.wrap_future(futures[2]) == "done"

    asyncio.run(scenario())
    assert not cancelled.began.is_set()


def test_an_error_ends_a_turn_and_is_told_to_who_waits_for_the_answer(threads):
    turns = busy(threads, 1)

    async def scenario() -> None:
        broken = asyncio.wrap_future(turns.submit(lambda: int("no number")))
        after = asyncio.wrap_future(turns.submit(lambda: "done"))
        with pytest.raises(ValueError, match="no number"):
            await broken
        assert await after == "done"

    asyncio.run(scenario())


class Ending(BaseException):
    pass


def test_who_waits_for_an_answer_and_ends_the_thread_takes_no_turn_with_it(threads):
    turns = busy(threads, 1)

    def end(_: object) -> None:
        raise Ending

    async def scenario() -> None:
        first = Job()
        future = turns.submit(first)
        future.add_done_callback(end)
        after = [asyncio.wrap_future(turns.submit(lambda: "done")) for _ in range(3)]
        first.released.set()
        assert await asyncio.gather(*after) == ["done"] * 3

    asyncio.run(scenario())


def test_turns_go_on_after_the_event_loop_that_watched_them_has_ended(threads):
    turns = idle(threads, 1)
    left = Job()

    async def leave() -> None:
        turns.submit(left)
        turns.submit(lambda: "waits")

    async def go_on() -> str:
        return await asyncio.wrap_future(turns.submit(lambda: "done"))

    asyncio.run(leave())
    assert asyncio.run(go_on()) == "done"
    left.released.set()


def test_what_was_taken_before_the_threads_are_shut_down_is_done_and_what_comes_later_is_refused(threads):
    turns = busy(threads, 1)
    first = Job()

    async def scenario() -> None:
        futures = [turns.submit(job) for job in (first, lambda: "second", lambda: "third")]
        wait_for(first.began.is_set, "its turn")
        threads.shutdown(wait=False)
        first.released.set()
        done = await asyncio.gather(*map(asyncio.wrap_future, futures))
        assert done == ["done", "second", "third"]
        with pytest.raises(RuntimeError, match="after the shutdown"):
            await asyncio.wrap_future(turns.submit(lambda: "too late"))

    asyncio.run(scenario())
