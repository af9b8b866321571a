"""Threads that take turns: few work at once, and whoever waits keeps nobody from working."""

import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import pytest

from agentstate.turns import PATIENCE_SECONDS, Turns
from tools.services import wait_for


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(32) as executor:
        yield executor


def busy(at_once: int, looks: list[int] | None = None) -> Turns:
    """Of a process that takes all the CPU of one thread.

    :param looks: Gets longer each time that it is looked whether others can begin.
    """
    seen = [] if looks is None else looks

    def used() -> float:
        seen.append(len(seen))
        return float(len(seen))

    # There are millions of looks before anybody has worked for long.
    clock = itertools.count()
    return Turns(at_once=at_once, look_seconds=1e-9, clock=lambda: next(clock) * 1e-9, cpu=used)


def idle(at_once: int) -> Turns:
    """Of a process that takes no CPU: all who work wait for something."""
    clock = itertools.count()
    return Turns(at_once=at_once, look_seconds=0.0001, clock=lambda: next(clock), cpu=lambda: 0.0)


def slow(at_once: int) -> Turns:
    """Of a process that takes all the CPU of one thread, with jobs that all take long."""
    clock = itertools.count(step=PATIENCE_SECONDS)
    return Turns(at_once=at_once, look_seconds=0.0001, clock=lambda: next(clock), cpu=lambda: next(clock))


def longer(looks: list[int], than: int) -> bool:
    return len(looks) > than


class Job:
    """Waits until it is released."""

    def __init__(self) -> None:
        self.began, self.released = threading.Event(), threading.Event()

    def __call__(self) -> str:
        self.began.set()
        assert self.released.wait(30)
        return "done"


def in_turn(threads: ThreadPoolExecutor, turns: Turns, job: Callable[[], object]) -> "Future[object]":
    """Give it to a thread, which stands in line when this returns, or has begun."""
    before = len(turns._line) + len(turns._working)

    def work() -> object:
        with turns.turn():
            return job()

    future = threads.submit(work)
    wait_for(lambda: future.done() or len(turns._line) + len(turns._working) > before, "a place in line")
    return future


def test_two_work_at_once_and_the_others_follow_in_their_order(threads):
    looks: list[int] = []
    turns = busy(2, looks)
    jobs = [Job() for _ in range(5)]
    futures = [in_turn(threads, turns, job) for job in jobs]
    for number, job in enumerate(jobs):
        wait_for(job.began.is_set, "its turn")
        later, before = jobs[number + 2 :], len(looks)
        if later:
            wait_for(partial(longer, looks, before + 4), "looks")
        assert not any(other.began.is_set() for other in later)
        job.released.set()
        assert futures[number].result(30) == "done"


@pytest.mark.parametrize("make", [idle, slow])
def test_those_who_wait_or_work_for_long_keep_nobody_waiting(threads, make):
    turns = make(1)
    met = threading.Barrier(20)

    def meet() -> int:
        with turns.turn():
            return met.wait(30)

    futures = [threads.submit(meet) for _ in range(20)]
    assert {future.result(30) for future in futures} == set(range(20))


def test_as_soon_as_the_process_is_not_busy_all_begin_who_wait(threads):
    taken = 1.0
    clock = itertools.count()
    turns = Turns(
        at_once=1, look_seconds=1e-9, clock=lambda: next(clock) * 1e-9, cpu=lambda: next(clock) * taken
    )
    jobs = [Job() for _ in range(20)]
    futures = [in_turn(threads, turns, job) for job in jobs]
    assert sum(job.began.is_set() for job in jobs) == 1
    taken = 0.0
    wait_for(lambda: all(job.began.is_set() for job in jobs), "their turns")
    for job in jobs:
        job.released.set()
    assert [future.result(30) for future in futures] == ["done"] * 20


def test_an_error_ends_a_turn(threads):
    turns = busy(1)
    broken = in_turn(threads, turns, lambda: int("no number"))
    after = in_turn(threads, turns, lambda: "done")
    with pytest.raises(ValueError, match="no number"):
        broken.result(30)
    assert after.result(30) == "done"


class Interrupted(BaseException):
    pass


class Interrupting(threading.Event):
    def clear(self) -> None:
        raise Interrupted


@pytest.mark.parametrize("place", [0, 1, 2])
def test_who_is_interrupted_in_line_keeps_nobody_waiting(threads, place):
    turns = busy(1)
    first, jobs = Job(), [Job() for _ in range(3)]
    holding = in_turn(threads, turns, first)
    wait_for(first.began.is_set, "its turn")
    futures = [in_turn(threads, turns, job) for job in jobs]
    interrupted = turns._line[place]
    before, interrupted.woken = interrupted.woken, Interrupting()
    before.set()
    with pytest.raises(Interrupted):
        futures[place].result(30)
    first.released.set()
    assert holding.result(30) == "done"
    for number, job in enumerate(jobs):
        if number != place:
            job.released.set()
            assert futures[number].result(30) == "done"
    assert not turns._line
    assert not turns._working


def test_nobody_is_lost_where_many_come_and_go(threads):
    turns = Turns(look_seconds=0.0005)
    count = itertools.count(1)
    futures = [threads.submit(lambda: _count(turns, count)) for _ in range(3_000)]
    assert sorted(future.result(60) for future in futures) == list(range(1, 3_001))
    assert not turns._line
    assert not turns._working


def _count(turns: Turns, count: "itertools.count[int]") -> int:
    with turns.turn():
        return next(count)
