"""Threads that take turns: few work at once, and whoever waits for long keeps nobody from working."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from agentstate.turns import Turns
from tools.services import wait_for

NEVER = 3600.0


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as executor:
        yield executor


class Job:
    """Waits until it is released."""

    def __init__(self) -> None:
        self.began, self.released = threading.Event(), threading.Event()

    def __call__(self) -> str:
        self.began.set()
        assert self.released.wait(30)
        return "done"


def test_two_work_at_once_and_the_others_follow_in_their_order(threads):
    turns = Turns(threads, at_once=2, patience=NEVER)
    jobs = [Job() for _ in range(5)]

    async def scenario() -> None:
        futures = [turns.submit(job) for job in jobs]
        for number, job in enumerate(jobs):
            wait_for(job.began.is_set, "its turn")
            assert [other.began.is_set() for other in jobs[number + 2 :]] == [False] * len(jobs[number + 2 :])
            job.released.set()
            assert await asyncio.wrap_future(futures[number]) == "done"

    asyncio.run(scenario())


def test_who_works_for_long_keeps_nobody_waiting(threads):
    turns = Turns(threads, at_once=1, patience=0.001)
    met = threading.Barrier(5)

    async def scenario() -> None:
        futures = [turns.submit(lambda: met.wait(30)) for _ in range(5)]
        assert sorted(await asyncio.gather(*map(asyncio.wrap_future, futures))) == [0, 1, 2, 3, 4]

    asyncio.run(scenario())


def test_who_worked_for_long_and_has_ended_gives_no_second_turn_away(threads):
    turns = Turns(threads, at_once=1, patience=NEVER)
    slow, second, third = Job(), Job(), Job()

    async def scenario() -> None:
        futures = [turns.submit(job) for job in (slow, second, third)]
        wait_for(slow.began.is_set, "its turn")
        turns._patience = 0.0
        turns._look()
        turns._patience = NEVER
        wait_for(second.began.is_set, "the turn of the second")
        slow.released.set()
        await asyncio.wrap_future(futures[0])
        assert not third.began.is_set()
        second.released.set()
        wait_for(third.began.is_set, "the turn of the third")
        third.released.set()

    asyncio.run(scenario())


def test_what_is_cancelled_before_its_turn_is_not_called(threads):
    turns = Turns(threads, at_once=1, patience=NEVER)
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
    turns = Turns(threads, at_once=1, patience=NEVER)

    async def scenario() -> None:
        broken = asyncio.wrap_future(turns.submit(lambda: int("no number")))
        after = asyncio.wrap_future(turns.submit(lambda: "done"))
        with pytest.raises(ValueError, match="no number"):
            await broken
        assert await after == "done"

    asyncio.run(scenario())


def test_turns_go_on_after_the_event_loop_that_watched_them_has_ended(threads):
    turns = Turns(threads, at_once=1, patience=0.001)
    left = Job()

    async def leave() -> None:
        turns.submit(left)
        turns.submit(lambda: "waits")

    async def go_on() -> str:
        return await asyncio.wrap_future(turns.submit(lambda: "done"))

    asyncio.run(leave())
    assert asyncio.run(go_on()) == "done"
    left.released.set()
