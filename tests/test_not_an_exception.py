"""What the user's code raises without its being an `Exception` ends its call or its run, and nothing else."""

import asyncio
import logging
import signal
import sys
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
from haystack import component
from haystack.components.agents import Agent
from haystack.components.agents.state import State
from haystack.components.generators.chat import MockChatGenerator
from haystack.dataclasses import ChatMessage, ToolCall
from haystack.hooks import hook
from haystack.tools import Tool

from agentstate import ToolPolicy
from agentstate.durable import tool_function
from agentstate.durable.agent import make_durable
from agentstate.durable.interruptions import NotAnException
from agentstate.durable.run import run, run_async
from agentstate.journals import MemoryJournal
from agentstate.names import CallState
from sessions_app import tasks
from sessions_app.runtime import worker
from tests.sample_agents import Awaited, one_tool, scripted


class Panic(BaseException):
    """As extensions in Rust raise it."""


def asks(agent: Agent, policies: dict[str, ToolPolicy] | None = None, *, later: bool = False) -> Any:
    """The journal of a run of the agent, and the run's outcome."""
    journal = MemoryJournal.open(say="hi")
    durable = make_durable(agent, policies=policies)
    return journal, asyncio.run(run_async(durable, journal)) if later else run(durable, journal)


def raising(error: BaseException) -> Callable[[], str]:
    def it() -> str:
        raise error

    return it


@pytest.mark.parametrize("later", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("timeout", [None, 5.0])
@pytest.mark.parametrize(
    "error", [Panic("at the disco"), asyncio.CancelledError(), SystemExit(2), GeneratorExit()]
)
def test_a_tool_that_raises_it_has_failed_for_the_model(
    error: BaseException, timeout: float | None, later: bool
) -> None:
    journal, outcome = asks(one_tool(raising(error)), {"it": ToolPolicy(timeout=timeout)}, later=later)
    assert outcome.status == "idle"
    [call] = journal.store.calls.values()
    assert call.status == CallState.FAILED
    assert call.error == f"Tool `it` failed: {type(error).__name__}: {str(error) or 'no message'}"


def test_an_async_tool_that_lets_a_cancellation_of_its_own_through_has_failed() -> None:
    async def it() -> str:
        inner = asyncio.ensure_future(asyncio.Event().wait())
        inner.cancel()
        await inner
        return ""

    tool = Tool(name="it", description="Waits.", parameters={"type": "object"}, async_function=it)
    agent = Agent(chat_generator=Awaited(scripted([ToolCall("it", {}, id="i")], "Over.")), tools=[tool])
    journal, outcome = asks(agent, later=True)
    assert outcome.status == "idle"
    [call] = journal.store.calls.values()
    assert call.error == "Tool `it` failed: CancelledError: no message"


def test_an_async_tool_that_raises_it_has_failed_and_one_whose_coroutine_is_closed_has_not() -> None:
    begun: list[str] = []

    async def it() -> str:
        begun.append("it")
        if len(begun) == 1:
            raise GeneratorExit
        await asyncio.Event().wait()
        return ""

    tool = Tool(name="it", description="Waits.", parameters={"type": "object"}, async_function=it)
    agent = Agent(chat_generator=Awaited(scripted([ToolCall("it", {}, id="i")], "Over.")), tools=[tool])
    journal, outcome = asks(agent, later=True)
    assert outcome.status == "idle"
    assert [call.error for call in journal.store.calls.values()] == [
        "Tool `it` failed: GeneratorExit: no message"
    ]

    async def until_it_waits(call: Any) -> None:
        waiting.append(asyncio.ensure_future(call))
        await asyncio.sleep(0)

    waiting: list[Any] = []
    call = tool_function.call_async(it, {}, seconds=None)
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *args: None)  # which is told of the task that is left behind
    loop.run_until_complete(until_it_waits(call))
    call.close()  # as Python does where the event loop has gone: it raises anything but what closes it
    loop.close()
    assert begun == ["it", "it"]


@pytest.mark.parametrize("later", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("error", [GeneratorExit(), StopIteration(3)], ids=lambda error: type(error).__name__)
@pytest.mark.parametrize(
    "point", ["before_run", "before_llm", "before_tool", "after_tool", "on_exit", "after_run"]
)
def test_a_hook_that_raises_it_fails_the_turn(point: str, error: BaseException, later: bool) -> None:
    class Hook:
        def run(self, state: State) -> None:
            raise error

        def to_dict(self) -> dict[str, Any]:
            return {}

    agent = one_tool(lambda: "ok").clone(hooks={point: [Hook()]})
    _, outcome = asks(agent, later=later)
    text = str(error) or "no message"
    assert (outcome.status, outcome.why) == ("idle", f"{type(error).__name__}: {text}")


@pytest.mark.parametrize("error", [GeneratorExit(), StopIteration(3)], ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("later", [False, True], ids=["sync", "async"])
def test_a_chat_generator_without_run_async_that_raises_it_fails_the_turn(
    error: BaseException, later: bool
) -> None:
    @component
    class Fails:
        @component.output_types(replies=list[ChatMessage])
        def run(self, messages: list[ChatMessage]) -> dict[str, Any]:
            raise error

    _, outcome = asks(Agent(chat_generator=Fails()), later=later)
    text = str(error) or "no message"
    assert (outcome.status, outcome.why) == ("idle", f"{type(error).__name__}: {text}")


def test_a_person_s_interrupt_ends_the_script() -> None:
    @hook
    def wait(state: State) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        asks(Agent(chat_generator=scripted("Over."), hooks={"before_llm": [wait]}))


@pytest.mark.parametrize("later", [False, True], ids=["sync", "async"])
def test_the_exit_that_a_handler_of_a_signal_asks_for_ends_the_process_and_not_the_turn(later: bool) -> None:
    """As billiard ends the child of a pool, and as a script may end itself."""

    def reply(messages: list[ChatMessage]) -> ChatMessage:
        signal.raise_signal(signal.SIGUSR1)
        return ChatMessage.from_assistant("Over.")

    def leave(number: int, frame: Any) -> None:
        sys.exit(3)

    agent = Agent(chat_generator=MockChatGenerator(response_fn=reply))
    before = signal.signal(signal.SIGUSR1, leave)
    try:
        with pytest.raises(SystemExit):
            asks(agent, later=later)
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("later", [False, True], ids=["sync", "async"])
def test_a_model_that_raises_it_fails_the_turn(later: bool) -> None:
    def reply(messages: list[ChatMessage]) -> ChatMessage:
        raise Panic("no tokens")

    _, outcome = asks(Agent(chat_generator=MockChatGenerator(response_fn=reply)), later=later)
    assert (outcome.status, outcome.why) == ("idle", "Panic: no tokens")


def test_the_log_says_where_a_run_failed_and_shows_no_text_of_the_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    @hook
    def look(state: State) -> None:
        try:
            raise ValueError("claim CLM-1042")
        except ValueError as error:
            raise Panic("DE89 3704") from error

    with caplog.at_level(logging.ERROR, logger="agentstate.durable.run"):
        _, outcome = asks(Agent(chat_generator=scripted("Over."), hooks={"before_llm": [look]}))
    assert outcome.why == "Panic: DE89 3704"
    [said] = [record.getMessage() for record in caplog.records]
    assert 'raise Panic("DE89 3704") from error' in said
    assert "caused by ValueError" in said
    assert "Panic: DE89 3704" not in said


def test_a_task_of_celery_ends_as_any_other_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def drive(*args: Any, **kwargs: Any) -> str:
        raise Panic("in a thread of the pool")

    monkeypatch.setattr(worker, "drive", drive)
    monkeypatch.setattr(tasks, "heartbeat", lambda: None)
    with pytest.raises(NotAnException, match="Panic: in a thread of the pool"):
        tasks.advance(str(uuid4()))


@pytest.mark.parametrize(
    "policy, status",
    [
        (ToolPolicy(idempotent=True, timeout=0.05), CallState.FAILED),
        (ToolPolicy(idempotent=True, timeout=0.05, effect="pays"), CallState.DOUBT),
    ],
    ids=["reads", "pays"],
)
def test_a_call_over_its_limit_that_may_take_effect_yet_is_in_doubt_also_if_it_is_idempotent(
    policy: ToolPolicy, status: CallState
) -> None:
    """The model would ask for it again, which is another call with another key."""

    async def wait() -> None:
        await asyncio.sleep(1)

    journal, _ = asks(one_tool(lambda: asyncio.run(wait())), {"it": policy})
    assert [call.status for call in journal.store.calls.values()] == [status]
