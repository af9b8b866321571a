"""`run_async`: cancellation, time limits, calls beside each other and lost sessions end as in a synchronous run."""

import asyncio
import json
import re
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest
from haystack.components.agents import Agent
from haystack.components.agents.state import State
from haystack.components.generators.chat import MockChatGenerator
from haystack.dataclasses import StreamingChunk, ToolCall
from haystack.hooks import hook
from haystack.tools import Tool

import agentstate
from agentstate import AtBreakpoint, Breakpoint, DurableAgent, ToolPolicy, Waiting
from agentstate.durable.agent import make_durable
from agentstate.durable.port import LeaseLost
from agentstate.durable.run import Options, run_async
from agentstate.journals import MemoryJournal
from tests import sample_agents
from tests.dying import Died
from tests.sample_agents import Awaited, effect, effects, scripted
from tests.test_durable_run import ALL_KINDS, comparable
from tools import processes

pytestmark = pytest.mark.usefixtures("no_effects")

SECONDS = 5.0
IDEMPOTENT = {"wait": ToolPolicy(idempotent=True)}


def waiting(function: Callable[..., Any], calls: int = 1, **options: Any) -> Agent:
    """An agent that calls an async tool so many times in one step, as `wait(n)`, and then says "Over."."""
    made = Tool(
        name="wait",
        description="Waits.",
        parameters={"type": "object", "properties": {"n": {"type": "integer"}}},
        async_function=function,
    )
    asked = [ToolCall("wait", {"n": n}, id=f"w{n}") for n in range(calls)]
    return Agent(chat_generator=scripted(asked, "Over."), tools=[made, sample_agents.fast], **options)


def statuses(journal: MemoryJournal) -> list[str]:
    return [call.status for call in journal.store.calls.values()]


def again(journal: MemoryJournal) -> MemoryJournal:
    """The session's journal at its next epoch, as a new process would get it."""
    return MemoryJournal.open(journal.store)


async def cancel_when(entered: asyncio.Event, running: asyncio.Task[Any]) -> None:
    """Cancel the run when its tool has been entered."""
    async with asyncio.timeout(SECONDS):
        await entered.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running


@pytest.mark.parametrize("idempotent", [False, True])
def test_a_cancelled_run_is_resumed_as_after_a_kill(idempotent: bool) -> None:
    journal = MemoryJournal.open(say="hi")
    entered: list[asyncio.Event] = []

    async def wait(n: int) -> str:
        effect(f"wait({n})")
        if len(effects) == 2:  # behind the model's first reply
            entered[0].set()
            await asyncio.Event().wait()
        return "waited"

    durable = make_durable(waiting(wait), policies=IDEMPOTENT if idempotent else {})

    async def cancelled() -> None:
        entered.append(asyncio.Event())
        await cancel_when(entered[0], asyncio.create_task(run_async(durable, journal)))

    asyncio.run(cancelled())
    assert statuses(journal) == ["started"]
    assert journal.store.last_end == {}  # the run has no end on record

    outcome = asyncio.run(run_async(durable, again(journal)))

    if idempotent:
        assert outcome.status == "idle"
        assert Counter(effects) == Counter(["model(0)", "wait(0)", "wait(0)", "model(1)"])
    else:
        assert outcome.why == "wait was started and did not report back. It may or may not have taken effect."
        assert effects == ["model(0)", "wait(0)"]


def test_a_cancelled_run_ends_when_the_tool_in_its_thread_has_and_keeps_its_result() -> None:
    journal = MemoryJournal.open(say="hi")
    may_end = threading.Event()

    async def cancelled() -> None:
        entered, loop = asyncio.Event(), asyncio.get_running_loop()

        def block() -> str:
            loop.call_soon_threadsafe(entered.set)
            assert may_end.wait(SECONDS)
            return "blocked"

        durable = make_durable(sample_agents.one_tool(block))
        running = asyncio.create_task(run_async(durable, journal))
        await entered.wait()
        running.cancel()
        await asyncio.sleep(0)
        assert not running.done()
        may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(cancelled())
    assert [call.result for call in journal.store.calls.values()] == ["blocked"]


class CancellingJournal(MemoryJournal):
    """Its run is cancelled while the n-th write is made."""

    cancel: Callable[[], None]
    cancels_at = 0
    writes = 0

    def _write(self, method: str, *args: Any, **kwargs: Any) -> Any:
        self.writes += 1
        if self.writes == self.cancels_at:
            self.cancel()
        return getattr(MemoryJournal, method)(self, *args, **kwargs)

    def checkpoint(self, *args: Any, **kwargs: Any) -> Any:
        return self._write("checkpoint", *args, **kwargs)

    def reply(self, *args: Any, **kwargs: Any) -> Any:
        return self._write("reply", *args, **kwargs)

    def start_call(self, *args: Any, **kwargs: Any) -> Any:
        return self._write("start_call", *args, **kwargs)

    def finish_call(self, *args: Any, **kwargs: Any) -> Any:
        return self._write("finish_call", *args, **kwargs)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["awaited_nested", *(pytest.param(n, marks=pytest.mark.slow) for n in ("awaited", "everything, async"))],
)
def test_cancelled_at_any_write_it_writes_nothing_more_and_ends_the_same_when_it_is_resumed(
    name: str,
) -> None:
    kind = ALL_KINDS[name]
    plain = kind.plainly()
    durable = kind.durable()

    async def cancelled_at(number: int) -> tuple[bool, CancellingJournal]:
        journal = CancellingJournal.open(say="hi", inputs={"state": kind.inputs})
        assert isinstance(journal, CancellingJournal)
        running = asyncio.create_task(run_async(durable, journal))
        loop = asyncio.get_running_loop()
        journal.cancels_at = number
        journal.cancel = lambda: (loop.call_soon_threadsafe(running.cancel), None)[1]
        done, _ = await asyncio.wait([running])
        assert done
        writes = journal.writes
        for _ in range(5):  # what is still in the event loop has its turn
            await asyncio.sleep(0.001)
        assert journal.writes == writes, f"write {number}"
        return running.cancelled(), journal

    number, was_cancelled = 0, True
    while was_cancelled:
        number += 1
        effects.clear()
        was_cancelled, journal = asyncio.run(cancelled_at(number))
        if journal.store.checkpoints[-1]["kind"] != "end":
            outcome = kind.run(durable, again(journal))
            assert outcome.result is not None, f"write {number}: {outcome.why}"
            assert comparable(outcome.result) == plain.result, f"write {number}"
        models = Counter(what for what in effects if what.startswith("model"))
        assert models == Counter(what for what in plain.effects.elements() if what.startswith("model"))
    assert number > 5


class SlowJournal(MemoryJournal):
    """Its first reply is committed when the event loop has let it."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.entered, self.may_commit = threading.Event(), threading.Event()

    def reply(self, *args: Any, **kwargs: Any) -> Any:
        self.entered.set()
        assert self.may_commit.wait(SECONDS)
        return super().reply(*args, **kwargs)


async def _turned(event: threading.Event) -> None:
    while not event.is_set():
        await asyncio.sleep(0)


def test_the_event_loop_turns_while_a_commit_takes_its_time() -> None:
    journal = SlowJournal.open(say="hi")
    assert isinstance(journal, SlowJournal)

    async def beside() -> None:
        await _turned(journal.entered)
        journal.may_commit.set()

    async def both() -> None:
        async with asyncio.timeout(SECONDS):
            outcome, _ = await asyncio.gather(
                run_async(make_durable(sample_agents.plain_talk()), journal), beside()
            )
        assert outcome.status == "idle"

    asyncio.run(both())


def test_a_cancellation_waits_for_the_commit_that_is_being_made() -> None:
    journal = SlowJournal.open(say="hi")
    assert isinstance(journal, SlowJournal)

    async def cancelled() -> None:
        running = asyncio.create_task(run_async(make_durable(sample_agents.plain_talk()), journal))
        await _turned(journal.entered)
        running.cancel()
        await asyncio.sleep(0)
        assert not running.done()
        journal.may_commit.set()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(cancelled())
    assert len(journal.store.replies) == 1
    assert asyncio.run(run_async(make_durable(sample_agents.plain_talk()), again(journal))).status == "idle"
    assert effects == ["model(0)"]


@pytest.mark.parametrize("idempotent", [False, True])
def test_a_time_limit_cancels_the_tool_and_leaves_it_in_doubt_or_tells_the_model(idempotent: bool) -> None:
    async def wait(n: int) -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            effect("cancelled")
            raise
        return ""

    policy = ToolPolicy(idempotent=idempotent, timeout=0.01)
    journal = MemoryJournal.open(say="hi")
    outcome = asyncio.run(run_async(make_durable(waiting(wait), policies={"wait": policy}), journal))
    assert effects.count("cancelled") == 1
    if idempotent:
        assert outcome.status == "idle"
        assert statuses(journal) == ["failed"]
    else:
        assert outcome.status == "waiting"
        assert outcome.why == (
            "wait did not answer within 0.01 seconds. It may or may not have taken effect."
        )


def test_a_timeout_of_the_tool_itself_is_an_error_for_the_model() -> None:
    async def wait(n: int) -> str:
        raise TimeoutError("the bank is slow")

    policy = ToolPolicy(timeout=SECONDS)
    journal = MemoryJournal.open(say="hi")
    outcome = asyncio.run(run_async(make_durable(waiting(wait), policies={"wait": policy}), journal))
    assert outcome.status == "idle"
    assert ["the bank is slow" in call.error for call in journal.store.calls.values()] == [True]


def test_a_run_that_one_call_ends_waits_for_those_beside_it_and_writes_nothing_behind_its_end() -> None:
    late = asyncio.Event()

    async def wait(n: int) -> str:
        try:
            await asyncio.Event().wait()
        finally:
            late.set()
        return ""

    async def long(n: int) -> str:
        await late.wait()
        for _ in range(20):
            await asyncio.sleep(0.001)
        return "ended"

    class Ending(MemoryJournal):
        at_its_end: tuple[list[str], int] = ([], 0)

        def end_run(self, *args: Any, **kwargs: Any) -> Any:
            status = super().end_run(*args, **kwargs)
            self.at_its_end = (statuses(self), len(effects))
            return status

    beside = Tool(
        name="long",
        description="Takes long.",
        parameters={"type": "object", "properties": {"n": {"type": "integer"}}},
        async_function=long,
    )
    calls = [ToolCall("wait", {"n": 0}, id="w0"), *[ToolCall("long", {"n": n}, id=f"l{n}") for n in range(2)]]
    agent = Agent(
        chat_generator=scripted(calls, "Over."),
        tools=[*waiting(wait).tools, beside],
        tool_concurrency_limit=2,
    )
    journal = Ending.open(say="hi")
    assert isinstance(journal, Ending)

    async def run_and_look() -> str:
        outcome = await run_async(make_durable(agent, policies={"wait": ToolPolicy(timeout=0.02)}), journal)
        for _ in range(20):  # what is still in the event loop has its turn
            await asyncio.sleep(0.001)
        return outcome.status

    assert asyncio.run(run_and_look()) == "waiting"
    assert (statuses(journal), len(effects)) == journal.at_its_end
    assert journal.at_its_end[0][:2] == ["doubt", "done"]
    assert journal.at_its_end[0][2] in ("planned", "done")


def test_a_run_that_lost_its_session_writes_nothing_more() -> None:
    journal = MemoryJournal.open(say="hi")

    async def wait(n: int) -> str:
        journal.store.epoch += 1  # another worker has taken over
        return "too late"

    with pytest.raises(LeaseLost):
        asyncio.run(run_async(make_durable(waiting(wait, 2)), journal))
    assert "done" not in statuses(journal)


@pytest.mark.slow
@pytest.mark.parametrize("limit", [1, 2])
@pytest.mark.parametrize("dies_at", [None, 2, 4])
def test_no_more_calls_run_at_once_than_the_limit_allows(limit: int, dies_at: int | None) -> None:
    running: set[int] = set()
    most = [0]

    async def wait(n: int) -> str:
        running.add(n)
        most[0] = max(most[0], len(running))
        for _ in range(20):
            await asyncio.sleep(0.001)
        running.discard(n)
        return f"waited {n}"

    durable = make_durable(waiting(wait, 5, tool_concurrency_limit=limit), policies=IDEMPOTENT)
    journal = MemoryJournal.open(say="hi")
    if dies_at is not None:
        _die_at(journal, dies_at)
        with pytest.raises(BaseException, match=r"died|epoch"):
            asyncio.run(run_async(durable, journal))
        running.clear()
    outcome = asyncio.run(run_async(durable, again(journal)))
    assert outcome.status == "idle"
    assert most[0] == limit
    assert [call.result for call in journal.store.calls.values()] == [f"waited {n}" for n in range(5)]


def _die_at(journal: MemoryJournal, number: int) -> None:
    """The process dies at its n-th start or end of a call."""
    writes = [0]
    start, finish = journal.start_call, journal.finish_call

    def dying(write: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            writes[0] += 1
            if writes[0] == number:
                journal.store.epoch += 1
                raise Died("died")
            return write(*args, **kwargs)

        return call

    journal.start_call, journal.finish_call = dying(start), dying(finish)  # type: ignore[method-assign]


def test_calls_that_wait_for_each_other_meet_also_where_one_runs_in_a_thread() -> None:
    barrier = threading.Barrier(2)

    async def wait(n: int) -> str:
        await asyncio.to_thread(barrier.wait, SECONDS)
        return "met"

    def meet() -> str:
        barrier.wait(SECONDS)
        return "met"

    agent = waiting(wait)
    meeting = Tool(
        name="meet", description="Meets.", parameters={"type": "object", "properties": {}}, function=meet
    )
    calls = [ToolCall("wait", {"n": 0}, id="w0"), ToolCall("meet", {}, id="m0")]
    agent = Agent(chat_generator=scripted(calls, "Over."), tools=[*agent.tools, meeting])
    journal = MemoryJournal.open(say="hi")
    assert asyncio.run(run_async(make_durable(agent), journal)).status == "idle"
    assert [call.result for call in journal.store.calls.values()] == ["met", "met"]


def test_context_variables_and_the_idempotency_key_reach_tools_hooks_and_the_journal() -> None:
    customer: ContextVar[str] = ContextVar("customer", default="nobody")
    seen: dict[str, str] = {}

    async def wait(n: int) -> str:
        seen["awaited"] = f"{customer.get()} {agentstate.idempotency_key()}"
        return "waited"

    def block() -> str:
        seen["in a thread"] = f"{customer.get()} {agentstate.idempotency_key()}"
        return "blocked"

    @hook
    async def look(state: State) -> None:
        seen["hook"] = customer.get()

    class Watched(MemoryJournal):
        def reply(self, *args: Any, **kwargs: Any) -> Any:
            seen["journal"] = customer.get()
            return super().reply(*args, **kwargs)

    it = sample_agents.one_tool(block).tools
    calls = [ToolCall("wait", {"n": 0}, id="w0"), ToolCall("it", {}, id="i0")]
    agent = Agent(
        chat_generator=scripted(calls, "Over."),
        tools=[*waiting(wait).tools, *it],
        hooks={"before_llm": [look]},
    )

    async def as_ann() -> None:
        customer.set("Ann")
        journal = Watched.open(say="hi", session_id="s")
        assert (await run_async(make_durable(agent), journal)).status == "idle"

    asyncio.run(as_ann())
    keys = {seen.pop("awaited"), seen.pop("in a thread")}
    # The middle part is made anew for each session, so that two of the same id differ.
    parts = {re.fullmatch(r"(Ann s)-([0-9a-f]{32})-([56])", key).groups() for key in keys}  # type: ignore[union-attr]
    assert {(start, position) for start, _, position in parts} == {("Ann s", "5"), ("Ann s", "6")}
    assert len({token for _, token, _ in parts}) == 1
    assert seen == {"hook": "Ann", "journal": "Ann"}


def test_replies_are_streamed_to_an_async_callback() -> None:
    chunks: list[str] = []

    async def stream(chunk: StreamingChunk) -> None:
        chunks.append(chunk.content)

    agent = Agent(chat_generator=Awaited(MockChatGenerator("Hello there.")))
    options = Options(streaming_callback=stream)
    outcome = asyncio.run(run_async(make_durable(agent), MemoryJournal.open(say="hi"), options))
    assert outcome.status == "idle"
    assert "".join(chunks) == "Hello there."


def test_a_tool_that_would_end_the_process_fails() -> None:
    async def wait(n: int) -> str:
        sys.exit(2)

    journal = MemoryJournal.open(say="hi")
    assert asyncio.run(run_async(make_durable(waiting(wait)), journal)).status == "idle"
    assert [call.error for call in journal.store.calls.values()] == ["Tool `wait` failed: SystemExit: 2"]


# The library


def test_a_script_asks_decides_and_resumes_by_the_agents_run_async(tmp_path: Path) -> None:
    path = tmp_path / "session.jsonl"
    policies = {"refund": ToolPolicy(approval=True)}

    async def script() -> str:
        session = DurableAgent(sample_agents.confirmed(), path, policies=policies)
        outcome = await session.run_async("Pay it back.", key="pay")
        assert isinstance(outcome, Waiting)
        for call in session.pending():
            session.decide(call.call_id, approve=True)
        outcome = await session.resume_async()
        assert (await session.run_async("Pay it back.", key="pay")).result == outcome.result
        return outcome.text

    assert asyncio.run(script()) == "Refund handled."
    assert Counter(effects) == Counter(
        ["model(0)", "fast(look)", "refund(A1,100)", "refund(B2,7)", "model(1)"]
    )


def test_run_refuses_an_agent_that_is_async_only_before_it_asks_anything() -> None:
    journal = MemoryJournal.open()
    session = DurableAgent(sample_agents.awaited(), journal)
    with pytest.raises(agentstate.AsyncOnly, match=r"the tool 'later'.*Call `await run_async"):
        session.run("hi")
    with pytest.raises(agentstate.AsyncOnly, match="resume_async"):
        session.resume()
    assert journal.store.turns.all == []


def test_two_tasks_that_run_one_session_follow_each_other() -> None:
    async def both() -> list[str]:
        session = DurableAgent(sample_agents.awaited_nested(), MemoryJournal.open())
        outcomes = await asyncio.gather(session.run_async("one"), session.run_async("two"))
        assert [message.text for message in session.history() if message.is_from("user")] == ["one", "two"]
        return [outcome.text for outcome in outcomes]

    assert asyncio.run(both()) == ["Outer done.", "Outer done."]


SCRIPT = """
import asyncio, json, os, signal, sys
from agentstate import DurableAgent
from tests import sample_agents
from tests.test_durable_run import ALL_KINDS, comparable

if len(sys.argv) > 2:
    sample_agents.effect = lambda what: what == "later(same)" and os.kill(os.getpid(), signal.SIGKILL)
policies = ALL_KINDS["awaited"].durable().policies
shop = DurableAgent(sample_agents.awaited(), sys.argv[1], policies=policies)
print(json.dumps(asyncio.run(shop.run_async("hi", key="hi")).result["notes"]))
"""


@pytest.mark.slow
def test_a_process_that_was_killed_in_an_async_tool_goes_on_when_it_is_started_again(tmp_path: Path) -> None:
    command = (sys.executable, "-c", SCRIPT, str(tmp_path / "session.jsonl"))
    env = processes.environment(HAYSTACK_TELEMETRY_ENABLED="false")
    assert processes.run((*command, "die"), env).returncode == -signal.SIGKILL
    done = processes.run(command, env)
    assert json.loads(done.stdout) == ["n1"], done.stderr


@pytest.mark.slow
def test_every_kind_of_sample_that_is_async_only_is_known_as_such() -> None:
    parts = {name: make_durable(kind.build()).async_only for name, kind in ALL_KINDS.items()}
    assert {name: bool(part) for name, part in parts.items() if part or "awaited" in name} == {
        "awaited": True,
        "awaited_nested": True,
        "awaited_summaries": True,
    }
    assert parts["awaited_nested"] == (
        "the tool 'later' of the agent in the tool 'helper'",
        "the tool 'later'",
    )


def test_a_breakpoint_stops_an_asynchronous_run_and_resume_async_goes_on() -> None:
    async def script() -> str:
        session = DurableAgent(sample_agents.awaited_nested(), MemoryJournal.open())
        outcome = await session.run_async("hi", break_point=Breakpoint(tool="later"))
        assert isinstance(outcome, AtBreakpoint)
        assert [call.tool for call in outcome.pending] == ["later"]
        assert "later(outer)" not in effects
        return (await session.resume_async()).text

    assert asyncio.run(script()) == "Outer done."
