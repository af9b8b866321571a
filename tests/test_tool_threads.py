"""Tools of durable runs are called in threads that are kept; those of other runs in threads of their own, as ever."""

import contextvars
import gc
import os
import signal
import subprocess
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connection, transaction
from haystack.components.agents import Agent
from haystack.components.agents.tool_calling import _run_tool
from haystack.dataclasses import ChatMessage, ToolCall
from haystack.tools import Tool

from agentstate.durable import tool_threads
from agentstate.durable.agent import make_durable
from agentstate.durable.run import run
from agentstate.durable.tool_threads import KeptThreads, StepThreads
from agentstate.journals import MemoryJournal
from sessions_app.models import Session
from tests.driving import Desk
from tests.sample_agents import scripted
from tools.processes import PROJECT

SECONDS = 10.0
NO_ARGUMENTS = {"type": "object", "properties": {}}
topic: contextvars.ContextVar[str] = contextvars.ContextVar("topic", default="none")


class Threads:
    """A tool that notes the thread of each of its calls."""

    def __init__(self) -> None:
        self.seen: list[threading.Thread] = []

    def agent(self, steps: int) -> Agent:
        tool = Tool("look", "Looks.", NO_ARGUMENTS, self.look)
        calls = [[ToolCall("look", {}, id=f"c{number}")] for number in range(steps)]
        return Agent(chat_generator=scripted(*calls, "Done."), tools=[tool])

    def look(self) -> str:
        self.seen.append(threading.current_thread())
        return "seen"


class CountedThreads(KeptThreads):
    """
    asked: how often one of the threads was asked for.
    """

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    def do(self, work: Callable[[], None]) -> None:
        self.asked += 1
        super().do(work)


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Iterator[CountedThreads]:
    """Threads of this test alone."""
    threads = CountedThreads()
    monkeypatch.setattr(tool_threads, "_kept", threads)
    yield threads
    threads.wait()


def test_the_steps_of_a_session_and_of_the_next_use_few_threads_again(kept: CountedThreads) -> None:
    tool = Threads()
    for _ in range(3):
        assert run(make_durable(tool.agent(10)), MemoryJournal.open(say="hi")).status == "idle"
    assert len(tool.seen) == 30
    # The thread of a call may still be on its way back when the next call begins, in the same thread or another.
    assert len(set(tool.seen)) < 10
    assert all(thread.is_alive() for thread in tool.seen)
    assert threading.main_thread() not in tool.seen


def test_an_agent_outside_a_durable_run_has_the_threads_of_haystack() -> None:
    tool = Threads()
    agent = tool.agent(3)
    make_durable(agent)
    agent.run(messages=[ChatMessage.from_user("hi")])
    assert len(tool.seen) == 3
    assert not any(thread.is_alive() for thread in tool.seen)


def test_haystack_has_its_executor_from_where_it_is_replaced() -> None:
    assert "ThreadPoolExecutor" in _run_tool.__code__.co_names


def test_no_more_functions_run_at_once_than_was_said(kept: CountedThreads) -> None:
    released = threading.Event()

    def work(number: int) -> int:
        assert released.wait(SECONDS)
        return -number

    with StepThreads(2) as threads:
        futures = [threads.submit(work, number) for number in range(10)]
        assert kept.asked == 2
        released.set()
    assert [future.result(0) for future in futures] == [-number for number in range(10)]
    with StepThreads(2) as threads:
        assert threads.submit(work, 10).result(SECONDS) == -10
        assert threads.submit(work, 11).result(SECONDS) == -11


def test_one_at_a_time_runs_in_order(kept: CountedThreads) -> None:
    order: list[int] = []
    with StepThreads(1) as threads:
        for number in range(50):
            threads.submit(order.append, number)
    assert order == list(range(50))


def test_a_call_that_calls_others_does_not_wait_for_its_own_thread() -> None:
    def deeper(depth: int) -> int:
        if depth == 0:
            return 0
        with StepThreads(1) as threads:
            return 1 + threads.submit(deeper, depth - 1).result(SECONDS)

    assert deeper(20) == 20


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3), KeyboardInterrupt()])
def test_what_a_function_raises_is_raised_where_its_result_is_asked_for(
    kept: CountedThreads, error: BaseException
) -> None:
    def fail() -> None:
        raise error

    with StepThreads(1) as threads:
        failed, after = threads.submit(fail), threads.submit(len, "abc")
    with pytest.raises(type(error)):
        failed.result(0)
    assert after.result(0) == 3


def test_a_call_leaves_no_context_variable_to_the_next(kept: CountedThreads) -> None:
    seen: list[str] = []

    def look() -> str:
        seen.append(topic.get())
        topic.set("that of a call")
        return "seen"

    calls = [[ToolCall("look", {}, id=f"c{number}")] for number in range(5)]
    agent = Agent(
        chat_generator=scripted(*calls, "Done."), tools=[Tool("look", "Looks.", NO_ARGUMENTS, look)]
    )
    token = topic.set("that of the caller")
    try:
        assert run(make_durable(agent), MemoryJournal.open(say="hi")).status == "idle"
    finally:
        topic.reset(token)
    assert seen == ["that of the caller"] * 5


def test_there_are_no_more_threads_than_calls_at_once(kept: CountedThreads) -> None:
    clients, calls = 8, 500
    seen: set[threading.Thread] = set()

    def client() -> None:
        for _ in range(calls):
            with StepThreads(1) as threads:
                threads.submit(lambda: seen.add(threading.current_thread())).result(SECONDS)

    started = [threading.Thread(target=client) for _ in range(clients)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    assert kept.asked == clients * calls
    # A thread may still be on its way back when its client asks for the next.
    assert len(seen) <= 3 * clients


def test_calls_that_wait_for_each_other_each_have_a_thread_however_often_threads_were_used(
    kept: CountedThreads,
) -> None:
    for number in (1, 2, 5, 20, 3, 20):
        barrier = threading.Barrier(number)
        with StepThreads(number) as threads:
            futures = [threads.submit(barrier.wait, SECONDS) for _ in range(number)]
        assert sorted(future.result(0) for future in futures) == list(range(number))


@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), KeyboardInterrupt()], ids=repr)
def test_a_call_for_which_there_is_no_thread_is_refused_and_never_made(
    error: BaseException, monkeypatch: pytest.MonkeyPatch, kept: CountedThreads
) -> None:
    made: list[str] = []

    def fail(thread: threading.Thread) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        with pytest.raises(type(error)), StepThreads(2) as threads:
            threads.submit(made.append, "first")
    with pytest.raises(RuntimeError, match="No thread could be started for an earlier function"):
        threads.submit(made.append, "second")
    with StepThreads(1) as others:
        others.submit(made.append, "third")
    assert made == ["third"]


def test_a_call_during_whose_start_its_run_is_interrupted_is_made_at_most_once_and_waited_for(
    monkeypatch: pytest.MonkeyPatch, kept: CountedThreads
) -> None:
    made: list[str] = []
    start = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        raise KeyboardInterrupt

    def work() -> None:
        made.append("began")
        made.append("ended")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(KeyboardInterrupt), StepThreads(2) as threads:
            threads.submit(work)
    assert made in ([], ["began", "ended"])


def test_a_call_that_was_cancelled_before_its_turn_is_not_made(kept: CountedThreads) -> None:
    made: list[int] = []
    released = threading.Event()
    with StepThreads(1) as threads:
        threads.submit(released.wait, SECONDS)
        cancelled = threads.submit(made.append, 1)
        threads.submit(made.append, 2)
        assert cancelled.cancel()
        released.set()
    assert made == [2]


def test_what_a_failed_call_was_given_is_freed_without_a_collection(kept: CountedThreads) -> None:
    class Given:
        pass

    def fail(given: Given) -> None:
        raise ValueError("no")

    given = Given()
    reference = weakref.ref(given)
    gc.disable()
    try:
        with StepThreads(1) as threads:
            failed = threads.submit(fail, given)
        assert failed.exception() is not None
        kept.wait()
        del given, failed, threads
        assert reference() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("most", [0, -1])
def test_at_least_one_function_may_run(most: int) -> None:
    with pytest.raises(ValueError, match="At least one"):
        StepThreads(most)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("left_open", ["nothing", "atomic", "autocommit off", "BEGIN"])
def test_a_transaction_that_a_call_leaves_open_is_not_met_by_the_next(
    kept: CountedThreads, desk: Desk, left_open: str
) -> None:
    counted: list[int] = []
    kept_open: list[Any] = []

    def look() -> str:
        counted.append(Session.objects.count())
        if left_open == "atomic":
            kept_open.append(transaction.atomic())
            kept_open[-1].__enter__()
            # On SQLite it would lock out the run as well.
            connection.cursor().execute("ROLLBACK")
        elif left_open == "autocommit off":
            transaction.set_autocommit(False)
        elif left_open == "BEGIN":
            connection.cursor().execute("BEGIN")
        return "seen"

    calls = [[ToolCall("look", {}, id=f"c{number}")] for number in range(3)]
    tool = Tool("look", "Looks.", NO_ARGUMENTS, look)
    desk.agent(lambda: Agent(chat_generator=scripted(*calls, "Done."), tools=[tool]))
    first = desk.start()
    assert desk.drive(first) == "idle", desk.texts(first)
    assert desk.drive(desk.start()) == "idle"
    assert counted == [1, 1, 1, 2, 2, 2]


@pytest.mark.django_db(transaction=True)
def test_a_call_leaves_no_database_connection_to_the_next(kept: CountedThreads, desk: Desk) -> None:
    before: list[bool] = []

    def look() -> str:
        before.append(connection.connection is not None)
        Session.objects.count()
        assert connection.connection is not None
        return "seen"

    calls = [[ToolCall("look", {}, id=f"c{number}")] for number in range(5)]
    desk.agent(
        lambda: Agent(
            chat_generator=scripted(*calls, "Done."), tools=[Tool("look", "Looks.", NO_ARGUMENTS, look)]
        )
    )
    assert desk.drive(desk.start()) == "idle"
    assert before == [False] * 5


def test_a_process_that_was_forked_has_threads_of_its_own() -> None:
    def name_of_thread() -> str:
        with StepThreads(1) as threads:
            return threads.submit(lambda: threading.current_thread().name).result(SECONDS)

    assert name_of_thread() == "agentstate-tool"
    assert in_a_fork(lambda: name_of_thread() == "agentstate-tool")


def test_a_process_ends_when_the_call_that_runs_has() -> None:
    code = """
import threading, time
from agentstate.durable.tool_threads import StepThreads

def work():
    begun.set()
    time.sleep(0.3)
    print("ended", flush=True)

begun = threading.Event()
threading.Thread(target=lambda: StepThreads(1).submit(work), daemon=True).start()
begun.wait()
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=PROJECT
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "ended\n", "")


def in_a_fork(check: Callable[[], bool]) -> bool:
    with warnings.catch_warnings():
        # Newer versions of Python warn of a fork beside other threads, which is what this is about.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(2 * int(SECONDS))
            code = 0 if check() else 1
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status) == 0
