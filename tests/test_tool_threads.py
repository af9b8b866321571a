"""Tools of durable runs are called in threads that are kept, or in the thread of a worker's run; those of other runs in
threads of their own, as ever.
"""

import asyncio
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
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import pytest
from django.db import connection, connections, transaction
from haystack.components.agents import Agent, tool_calling
from haystack.components.agents.tool_calling import _run_tool
from haystack.dataclasses import ChatMessage, ToolCall
from haystack.tools import Tool

from agentstate.durable import tool_threads
from agentstate.durable.agent import make_durable
from agentstate.durable.run import run
from agentstate.durable.tool_threads import KeptThreads, StepThreads
from agentstate.journals import MemoryJournal
from sessions_app.models import Session
from sessions_app.models import ToolCall as StoredCall
from sessions_app.runtime.connection import RunConnection, forget_connections
from tests.driving import Desk
from tests.sample_agents import scripted
from tools.processes import PROJECT

Result = TypeVar("Result")

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


def do(work: Callable[[], None]) -> None:
    work()


class WorkersJournal(MemoryJournal):
    """One whose run has a thread to itself, as the runs of workers do."""

    call_here = staticmethod(do)


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


def test_haystack_asks_each_call_for_its_result(monkeypatch: pytest.MonkeyPatch) -> None:
    def waits_for_all(calls: Any) -> Any:
        results = []
        for each in calls.wait():
            results.append(each.result())  # noqa: PERF401 - a comprehension would be a function of its own
        return results

    assert tool_threads._one_by_one
    monkeypatch.setattr(tool_calling, "_run_tool", waits_for_all)
    assert not tool_threads._asks_each_for_its_result()
    monkeypatch.delattr(tool_calling, "_run_tool")
    assert not tool_threads._asks_each_for_its_result()


def test_a_function_that_is_kept_back_begins_where_nobody_asks_for_its_result(kept: CountedThreads) -> None:
    called = threading.Event()
    threads = StepThreads(1, here=do)
    threads.submit(called.set)
    threads.shutdown(wait=False)
    assert called.wait(SECONDS)
    assert kept.asked == 1
    told: list[Any] = []

    def refuse(work: Callable[[], None]) -> None:
        raise ValueError("not here")

    with StepThreads(1, here=refuse) as refused:
        future = refused.submit(len, "abc")
        with pytest.raises(ValueError, match="not here"):
            future.result()
    assert future.cancelled()
    with StepThreads(1, here=do) as others:
        future = others.submit(len, "abc")
        future.add_done_callback(told.append)
        assert told == [future]


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


@pytest.mark.parametrize("here", [None, do], ids=["kept thread", "here"])
def test_what_a_failed_call_was_given_is_freed_without_a_collection(
    here: Callable[[Callable[[], None]], None] | None, kept: CountedThreads
) -> None:
    class Given:
        pass

    def fail(given: Given) -> None:
        raise ValueError("no")

    given = Given()
    reference = weakref.ref(given)
    gc.disable()
    try:
        with StepThreads(1, here=here) as threads:
            failed = threads.submit(fail, given)
            with pytest.raises(ValueError, match="no"):
                failed.result(SECONDS)
        kept.wait()
        del given, failed, threads
        assert reference() is None
    finally:
        gc.enable()


@pytest.mark.parametrize(
    "where, daemon, journal, is_own",
    [
        ("another", False, WorkersJournal, True),
        ("another", True, WorkersJournal, False),
        ("another", False, MemoryJournal, False),
        ("main", False, WorkersJournal, False),
    ],
    ids=["a worker's", "a daemon", "a caller's", "the main thread"],
)
def test_a_call_that_is_alone_is_made_in_the_thread_of_its_run_where_that_is_a_workers(
    where: str, daemon: bool, journal: type[MemoryJournal], is_own: bool, kept: CountedThreads
) -> None:
    tool = Threads()
    own: list[threading.Thread] = []

    def drive() -> None:
        own.append(threading.current_thread())
        assert run(make_durable(tool.agent(5)), journal.open(say="hi")).status == "idle"

    if where == "main":
        drive()
    else:
        thread = threading.Thread(target=drive, daemon=daemon)
        thread.start()
        thread.join(2 * SECONDS)
    assert len(tool.seen) == 5
    assert {thread is own[0] for thread in tool.seen} == {is_own}
    assert kept.asked == (0 if is_own else 5)


def test_a_call_that_is_alone_may_run_an_event_loop(kept: CountedThreads) -> None:
    async def look() -> str:
        await asyncio.sleep(0)
        return threading.current_thread().name

    def drive() -> str:
        names: list[str] = []
        tool = Tool("look", "Looks.", NO_ARGUMENTS, lambda: names.append(asyncio.run(look())))
        agent = Agent(chat_generator=scripted([ToolCall("look", {}, id="c1")], "Done."), tools=[tool])
        assert run(make_durable(agent), WorkersJournal.open(say="hi")).status == "idle"
        return names[0]

    async def drive_in_a_loop() -> str:
        return drive()

    assert in_a_thread(drive).startswith("run")
    assert in_a_thread(lambda: asyncio.run(drive_in_a_loop())) == "agentstate-tool"


@pytest.mark.parametrize("number", [2, 3])
def test_calls_of_one_step_run_at_the_same_time(number: int, kept: CountedThreads) -> None:
    barrier = threading.Barrier(number)

    def meet() -> str:
        barrier.wait(SECONDS)
        return "met"

    calls = [ToolCall("meet", {}, id=f"c{each}") for each in range(number)]
    agent = Agent(chat_generator=scripted(calls, "Done."), tools=[Tool("meet", "Meets.", NO_ARGUMENTS, meet)])
    journal = WorkersJournal.open(say="hi")
    assert in_a_thread(lambda: run(make_durable(agent), journal).status) == "idle"
    assert kept.asked == number
    assert not barrier.broken


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("most", [1, 2])
def test_functions_are_called_once_each_whether_their_results_are_asked_for_or_not(
    number: int, most: int, kept: CountedThreads
) -> None:
    for asked in (True, False):
        made: list[int] = []

        def work(given: int, made: list[int] = made) -> int:
            made.append(given)
            return -given

        with StepThreads(most, here=do) as threads:
            futures = [threads.submit(work, given) for given in range(number)]
            if asked:
                assert [future.result(SECONDS) for future in futures] == [-given for given in range(number)]
        assert sorted(made) == list(range(number))
        assert made == list(range(number)) or most > 1
        assert [future.result(0) for future in futures] == [-given for given in range(number)]


def test_functions_that_follow_each_other_are_each_called_where_their_result_is_asked_for(
    kept: CountedThreads,
) -> None:
    with StepThreads(2, here=do) as threads:
        for _ in range(3):
            assert threads.submit(threading.current_thread).result(0) is threading.current_thread()
    assert kept.asked == 0


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3)], ids=repr)
def test_what_a_function_alone_raises_is_raised_where_its_result_is_asked_for(error: BaseException) -> None:
    def fail() -> None:
        raise error

    with StepThreads(1, here=do) as threads:
        failed = threads.submit(fail)
        with pytest.raises(type(error)):
            failed.result(0)
        assert failed.exception(0) is error
        assert threads.submit(len, "abc").result(0) == 3


@pytest.mark.parametrize("most", [0, -1])
def test_at_least_one_function_may_run(most: int) -> None:
    with pytest.raises(ValueError, match="At least one"):
        StepThreads(most)


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("where", ["in the main thread", "in another thread"])
@pytest.mark.parametrize("left_open", ["nothing", "atomic", "autocommit off", "BEGIN"])
def test_a_transaction_that_a_call_leaves_open_is_not_met_by_the_next(
    kept: CountedThreads, desk: Desk, left_open: str, where: str
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
    assert drive(desk, first, where) == "idle", desk.texts(first)
    assert drive(desk, desk.start(), where) == "idle"
    assert counted == [1, 1, 1, 2, 2, 2]
    assert bool(kept.asked) == (where == "in the main thread")


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("where", ["in the main thread", "in another thread"])
def test_a_call_leaves_no_database_connection_to_the_next(
    kept: CountedThreads, desk: Desk, where: str
) -> None:
    before: list[bool] = []
    opened: list[Any] = []

    def look() -> str:
        before.append(connection.connection is not None)
        Session.objects.count()
        opened.append(connections["default"])
        assert connection.connection is not None
        return "seen"

    calls = [[ToolCall("look", {}, id=f"c{number}")] for number in range(5)]
    desk.agent(
        lambda: Agent(
            chat_generator=scripted(*calls, "Done."), tools=[Tool("look", "Looks.", NO_ARGUMENTS, look)]
        )
    )
    assert drive(desk, desk.start(), where) == "idle"
    assert before == [False] * 5
    assert [each.connection for each in opened] == [None] * 5
    assert bool(kept.asked) == (where == "in the main thread")


@pytest.mark.django_db(transaction=True)
def test_every_connection_of_a_run_is_put_aside_while_a_tool_is_called_in_its_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(connections.settings, "second", connections.settings["default"])
    own = [connections["default"], connections["second"]]
    seen: list[Any] = []

    def work() -> None:
        seen.extend([connections["default"], connections["second"]])
        raise ValueError("no")

    try:
        with pytest.raises(ValueError, match="no"):
            RunConnection().aside(work)
        assert not {id(each) for each in own} & {id(each) for each in seen}
        assert [connections["default"], connections["second"]] == own
    finally:
        del connections["second"]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("where", ["in the main thread", "in another thread"])
@pytest.mark.parametrize("how, code", [("returns", 0), ("raises", 1), ("exits", 3)])
def test_a_process_that_a_tool_has_forked_does_not_go_on_with_the_run(
    kept: CountedThreads, desk: Desk, tmp_path: Path, where: str, how: str, code: int
) -> None:
    log = tmp_path / "effects"

    def spawn() -> str:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:
            signal.alarm(int(SECONDS))
            if how == "raises":
                raise ValueError("in the child")
            if how == "exits":
                sys.stdout = None
                sys.exit(3)
            return "the child"
        _, status = os.waitpid(child, 0)
        return str(os.waitstatus_to_exitcode(status))

    def note() -> str:
        with log.open("a") as file:
            file.write(f"{os.getpid()}\n")
        return "noted"

    tools = [Tool("spawn", "Spawns.", NO_ARGUMENTS, spawn), Tool("note", "Notes.", NO_ARGUMENTS, note)]
    calls = [[ToolCall("spawn", {}, id="c1")], [ToolCall("note", {}, id="c2")]]
    desk.agent(lambda: Agent(chat_generator=scripted(*calls, "Done."), tools=tools))
    session = desk.start()
    assert drive(desk, session, where) == "idle"
    assert log.read_text() == f"{os.getpid()}\n"
    ended = StoredCall.objects.order_by("position").values_list("tool", "status", "result")
    assert list(ended) == [("spawn", "done", str(code)), ("note", "done", "noted")]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("where", ["in the main thread", "in another thread"])
def test_an_event_loop_that_a_tool_leaves_running_ends_with_the_call(
    kept: CountedThreads, desk: Desk, where: str
) -> None:
    loops: list[asyncio.AbstractEventLoop] = []

    def leave() -> str:
        loops.append(asyncio.new_event_loop())
        asyncio._set_running_loop(loops[-1])
        return "left"

    calls = [[ToolCall("leave", {}, id=f"c{number}")] for number in range(2)]
    desk.agent(
        lambda: Agent(
            chat_generator=scripted(*calls, "Done."), tools=[Tool("leave", "Leaves.", NO_ARGUMENTS, leave)]
        )
    )
    for _ in range(2):
        assert drive(desk, desk.start(), where) == "idle"
    assert set(StoredCall.objects.values_list("status", flat=True)) == {"done"}
    for loop in loops:
        loop.close()


def test_a_process_that_was_forked_has_threads_of_its_own() -> None:
    def name_of_thread() -> str:
        with StepThreads(1) as threads:
            return threads.submit(lambda: threading.current_thread().name).result(SECONDS)

    assert name_of_thread() == "agentstate-tool"
    assert in_a_fork(lambda: name_of_thread() == "agentstate-tool")


@pytest.mark.slow
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


def drive(desk: Desk, session: Any, where: str) -> str:
    def outcome() -> str:
        try:
            return desk.drive(session)
        finally:
            forget_connections()

    return desk.drive(session) if where == "in the main thread" else in_a_thread(outcome)


def in_a_thread(function: Callable[[], Result]) -> Result:
    with ThreadPoolExecutor(1, thread_name_prefix="run") as threads:
        return threads.submit(function).result(2 * SECONDS)


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
