"""Traces of a durable run name the user's hooks as those of a plain run do, and our own at most once per hook point."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from haystack import tracing
from haystack.components.agents import Agent
from haystack.components.agents.state import State
from haystack.hooks.human_in_the_loop import (
    AlwaysAskPolicy,
    BlockingConfirmationStrategy,
    ConfirmationHook,
    NeverAskPolicy,
    SimpleConsoleUI,
)
from haystack.tracing import Span, Tracer

from agentstate import DurableAgent
from agentstate.durable.agent import make_durable
from agentstate.durable.approvals import JournalConfirmationStrategy
from agentstate.durable.run import Options, run, run_async
from agentstate.journals import MemoryJournal
from tests import sample_agents
from tests.test_durable_run import Kind


class Recorded(Span):
    def set_tag(self, key: str, value: Any) -> None:
        pass


class Recorder(Tracer):
    """Keeps the point, the name and the type of each hook that ran, and the types of the strategies of confirmation."""

    def __init__(self) -> None:
        self.hooks: list[tuple[str, str, str]] = []
        self.strategies: list[str] = []

    @contextmanager
    def trace(
        self, operation_name: str, tags: dict[str, Any] | None = None, parent_span: Span | None = None
    ) -> Iterator[Span]:
        if operation_name == "haystack.agent.hook" and tags is not None:
            point, name, kind = (tags[f"haystack.agent.hook.{key}"] for key in ("point", "name", "type"))
            self.hooks.append((point, name, kind))
        if operation_name == "haystack.agent.hook.human_in_the_loop.strategy" and tags is not None:
            self.strategies.append(tags["haystack.agent.hook.human_in_the_loop.strategy.type"])
        yield Recorded()

    def current_span(self) -> Span | None:
        return None


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    recorder = Recorder()
    tracing.enable_tracing(recorder)
    yield recorder
    tracing.disable_tracing()
    sample_agents.effects.clear()


class Careful(ConfirmationHook):
    """A user's own kind of confirmation."""


class Counting:
    """A hook that keeps a count of its own."""

    def __init__(self) -> None:
        self.count = 0
        self.opened = 0

    def warm_up(self) -> None:
        self.opened += 1

    def run(self, state: State) -> None:
        self.count += 1

    def to_dict(self) -> dict[str, Any]:
        return {"type": "tests.test_traces.Counting", "init_parameters": {}}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Counting":
        return cls()


def build() -> Agent:
    return sample_agents.long_run(
        2,
        hooks={
            "before_run": [sample_agents.greet],
            "before_llm": [Counting()],
            "before_tool": [Careful({"fast": JournalConfirmationStrategy(NeverAskPolicy())})],
            "after_run": [sample_agents.sign],
        },
    )


@pytest.mark.parametrize("is_async", [False, True], ids=["run", "run_async"])
def test_the_users_hooks_are_named_as_in_a_plain_run_and_ours_once_per_point(
    recorder: Recorder, is_async: bool
) -> None:
    kind = Kind(build, {}, is_async)
    kind.plainly()
    plain, recorder.hooks = recorder.hooks, []

    assert kind.run(make_durable(build()), MemoryJournal.open(say="hi")).status == "idle"

    own = [(point, name) for point, name, _ in recorder.hooks if name.startswith("agentstate.")]
    assert [hook for hook in recorder.hooks if not hook[1].startswith("agentstate.")] == plain
    assert own == [
        ("before_run", "agentstate.before_run"),
        *[("before_llm", "agentstate.before_llm"), ("before_tool", "agentstate.before_tool")] * 2,
        ("before_llm", "agentstate.before_llm"),
        ("after_run", "agentstate.after_run"),
    ]


@pytest.mark.parametrize("is_async", [False, True], ids=["run", "run_async"])
def test_a_hook_that_does_not_run_on_a_resumed_step_has_no_span(recorder: Recorder, is_async: bool) -> None:
    kind = Kind(build, {}, is_async)
    kind.plainly()
    plain, recorder.hooks = recorder.hooks, []

    journal, durable = MemoryJournal.open(say="hi"), make_durable(build())
    runs = 1
    while kind.run(durable, journal, Options(slice_is_over=lambda: True)).status == "queued":
        journal, runs = MemoryJournal.open(journal.store), runs + 1

    assert runs == 3
    assert [hook for hook in recorder.hooks if not hook[1].startswith("agentstate.")] == plain


class Asking(BlockingConfirmationStrategy):
    """A user's own kind of strategy."""


@pytest.mark.parametrize(
    "decision", [{"approve": True}, {"approve": True, "arguments": {"q": "b"}}, {"approve": False}]
)
def test_a_strategy_of_confirmation_keeps_its_type_and_ours_adds_none_to_it(
    recorder: Recorder, decision: dict[str, Any]
) -> None:
    strategy = Asking(confirmation_policy=AlwaysAskPolicy(), confirmation_ui=SimpleConsoleUI())
    agent = sample_agents.long_run(1, hooks={"before_tool": [Careful({"fast": strategy})]})
    session = DurableAgent(agent, MemoryJournal.open())

    assert session.run("hi").finished is False
    [call] = session.pending()
    session.decide(call.call_id, **decision)
    assert session.resume().finished

    own = "tests.test_traces.Asking"
    assert recorder.strategies == [own, own]
    assert [hook[1:] for hook in recorder.hooks if hook[0] == "before_tool"] == [
        ("Careful", "tests.test_traces.Careful"),
        ("agentstate.before_tool", "agentstate.durable.hooks.agentstate.before_tool"),
    ] * 2


def test_a_hook_keeps_what_it_remembers_in_the_users_object(recorder: Recorder) -> None:
    agent = build()
    counting = agent.hooks["before_llm"][0]
    assert isinstance(counting, Counting)
    run(make_durable(agent), MemoryJournal.open(say="hi"))
    assert (counting.count, counting.opened) == (3, 1)


def test_what_is_opened_on_the_event_loop_is_opened_and_closed_there() -> None:
    opened: list[str] = []

    class Lasting(Counting):
        async def run_async(self, state: State) -> None:
            opened.append("hook")

        async def warm_up_async(self) -> None:
            opened.append("hook, warm")

        async def close_async(self) -> None:
            opened.append("hook, closed")

    class Client(sample_agents.Awaited):
        def warm_up(self) -> None:
            raise AssertionError("it is warmed up on the event loop")

        async def warm_up_async(self) -> None:
            opened.append("model, warm")

        async def close_async(self) -> None:
            opened.append("model, closed")

    model = Client(sample_agents.scripted("Hello."))
    durable = make_durable(Agent(chat_generator=model, hooks={"before_llm": [Lasting()]}))

    async def run_and_close() -> None:
        assert (await run_async(durable, MemoryJournal.open(say="hi"))).status == "idle"
        await durable.agent.close_async()

    asyncio.run(run_and_close())
    assert opened == ["hook, warm", "model, warm", "hook", "hook, closed", "model, closed"]


def test_to_dict_of_a_durable_agent_is_that_of_the_users_agent() -> None:
    def serialisable() -> Agent:
        from haystack.components.generators.chat import MockChatGenerator

        return Agent(
            chat_generator=MockChatGenerator("Hello."),
            tools=[sample_agents.fast],
            hooks={"before_run": [sample_agents.greet], "before_llm": [Counting()]},
        )

    assert DurableAgent(serialisable(), MemoryJournal.open()).to_dict() == serialisable().to_dict()
    assert make_durable(serialisable()).agent.to_dict() == serialisable().to_dict()
