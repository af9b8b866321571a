"""A reply is shown while the model writes it, and everything else in the run is as without that."""

import asyncio
from typing import Any

import pytest
from haystack.components.agents import Agent
from haystack.components.generators.chat import FallbackChatGenerator, MockChatGenerator, OpenAIChatGenerator
from haystack.dataclasses import ChatMessage, ToolCall
from haystack.tools import Tool
from haystack.utils import Secret

import agentstate
from agentstate import DurableAgent
from agentstate.durable import streaming
from agentstate.durable.agent import build, make_durable
from agentstate.durable.registry import AgentBuildFailed, registry
from agentstate.durable.run import run, run_async
from agentstate.journals import MemoryJournal
from tests.driving import unregister
from tests.sample_agents import scripted
from tests.slow_models import SlowAwaitedModel, SlowModel, talking


class Shown:
    """A port that notes what it is told."""

    def __init__(self, order: list[str] | None = None) -> None:
        self.order = order if order is not None else []

    def begin(self, model_calls: int) -> "Shown":
        self.order.append(f"begin {model_calls}")
        return self

    def add(self, text: str) -> None:
        self.order.append(text)

    def end(self) -> None:
        self.order.append("end")


def shown_of(agent: Agent, shown: Shown | None = None, journal: MemoryJournal | None = None) -> list[str]:
    shown = shown or Shown()
    with streaming.shown_by(shown):
        run(make_durable(agent), journal or MemoryJournal.open(say="Is it covered?"))
    return shown.order


def registered(model: Any, **options: Any) -> Any:
    key = "streams-in-a-test"
    unregister(key)
    agentstate.agent(key, **options)(lambda: talking(model))
    try:
        return build(registry.get(key))
    finally:
        unregister(key)


@pytest.mark.parametrize("of", ["agent", "generator"])
def test_where_the_agent_streams_its_reply_is_shown_behind_its_own_callback(of: str) -> None:
    shown = Shown()
    model = SlowModel(["It ", "is."])

    def own(chunk: Any) -> None:
        shown.order.append(f"own {chunk.content}")

    if of == "generator":
        model.streaming_callback = own
    agent = talking(model, streaming_callback=own if of == "agent" else None)
    assert shown_of(agent, shown) == ["begin 0", "own It ", "It ", "own is.", "is.", "end"]


def test_an_agent_that_does_not_stream_is_not_made_to() -> None:
    model = SlowModel(["It ", "is."])
    assert shown_of(talking(model)) == []
    assert model.has_streamed == [False]


def test_registered_with_stream_an_agent_streams_on_the_desk_and_not_in_a_script() -> None:
    model = SlowModel(["It ", "is."])
    durable = registered(model, stream=True)
    run(durable, MemoryJournal.open(say="Is it covered?"))
    shown = Shown()
    with streaming.shown_by(shown):
        run(durable, MemoryJournal.open(say="Is it covered?"))
    assert model.has_streamed == [False, True]
    assert shown.order == ["begin 0", "It ", "is.", "end"]


@pytest.mark.parametrize("kwargs", [{"n": 2}, {"response_format": {"type": "json_object"}}])
def test_several_replies_and_structured_outputs_are_not_streamed(kwargs: dict[str, Any]) -> None:
    model = SlowModel(["{}"], generation_kwargs=kwargs)
    shown = Shown()
    with streaming.shown_by(shown):
        run(registered(model, stream=True), MemoryJournal.open(say="Is it covered?"))
    assert (model.has_streamed, shown.order) == ([False], [])


def test_a_generator_that_cannot_stream_is_refused_where_the_registration_says_that_it_does() -> None:
    class Mute(SlowModel):
        def run(self, messages: list[ChatMessage], tools: Any = None) -> dict[str, Any]:  # type: ignore[override]
            return {"replies": [ChatMessage.from_assistant("Yes.")]}

    assert not streaming.takes_callback(Mute([]))
    with pytest.raises(AgentBuildFailed, match="stream=True, and its Mute takes no streaming_callback"):
        registered(Mute([]), stream=True)


def test_the_usage_is_counted_as_without_streaming() -> None:
    model = SlowModel(["It ", "is."])
    journal = MemoryJournal.open(say="Is it covered?")
    with streaming.shown_by(Shown()):
        run(registered(model, stream=True), journal)
    totals = journal.load().progress.totals
    assert (totals["prompt_tokens"], totals["completion_tokens"], totals["model_calls"]) == (7, 3, 1)


def openai(**kwargs: Any) -> OpenAIChatGenerator:
    return OpenAIChatGenerator(api_key=Secret.from_token("none"), generation_kwargs=kwargs)


def test_openai_is_asked_for_the_usage_of_a_streamed_reply_that_the_user_does_not_stream() -> None:
    begun = streaming.with_partial_reply(
        openai(stream_options={"other": 1}), {"generation_kwargs": {"top_p": 1}}, Shown(), awaited=False
    )
    assert begun["generation_kwargs"] == {
        "top_p": 1,
        "stream_options": {"include_usage": True, "other": 1},
    }
    own = streaming.with_partial_reply(openai(), {"streaming_callback": print}, Shown(), awaited=False)
    assert "generation_kwargs" not in own


def test_generators_that_stand_in_for_each_other_stream_where_all_report_their_usage_alike() -> None:
    both = FallbackChatGenerator([openai(), openai()])
    assert streaming.may_be_shown(both, {}, streams=True)
    mixed = FallbackChatGenerator([openai(), MockChatGenerator("Yes.")])
    assert not streaming.may_be_shown(mixed, {}, streams=True)
    with_own = FallbackChatGenerator([MockChatGenerator("Yes.", streaming_callback=print)])
    assert not streaming.may_be_shown(with_own, {}, streams=True)


def test_a_reply_that_is_replayed_is_not_shown_again() -> None:
    journal = MemoryJournal.open(say="Is it covered?")
    model = SlowModel(["Yes."], streaming_callback=lambda chunk: None)
    first = shown_of(talking(model), journal=journal)
    assert first == ["begin 0", "Yes.", "end"]
    assert shown_of(talking(model), journal=journal) == []


def test_a_model_that_fails_ends_what_it_had_written() -> None:
    def fail(number: int) -> None:
        raise RuntimeError("no more")

    model = SlowModel(["It ", "is."], fail, streaming_callback=lambda chunk: None)
    assert shown_of(talking(model)) == ["begin 0", "It ", "end"]


@pytest.mark.parametrize("is_coroutine", [True, False])
def test_an_awaited_reply_is_shown_behind_its_own_callback(is_coroutine: bool) -> None:
    shown = Shown()

    async def awaited(chunk: Any) -> None:
        shown.order.append(f"own {chunk.content}")

    def plain(chunk: Any) -> None:
        shown.order.append(f"own {chunk.content}")

    agent = talking(SlowAwaitedModel(["It ", "is."]), streaming_callback=awaited if is_coroutine else plain)
    with streaming.shown_by(shown):
        asyncio.run(run_async(make_durable(agent), MemoryJournal.open(say="Is it covered?")))
    assert shown.order == ["begin 0", "own It ", "It ", "own is.", "is.", "end"]


@pytest.mark.parametrize("way", ["run", "run_async"])
def test_what_a_session_writes_that_a_tool_runs_is_not_shown_on_the_page_of_the_one_that_called_it(
    way: str,
) -> None:
    inner_model = SlowAwaitedModel(["Internal ", "notes."], streaming_callback=lambda chunk: None)
    if way == "run_async":

        async def ignored(chunk: Any) -> None: ...

        inner_model.streaming_callback = ignored
    inner = DurableAgent(talking(inner_model), MemoryJournal.open())

    def research() -> str:
        outcome = (
            inner.run("What is known?") if way == "run" else asyncio.run(inner.run_async("What is known?"))
        )
        return outcome.text

    schema = {"type": "object", "properties": {}}
    tool = Tool(name="research", description="", parameters=schema, function=research)
    outer = Agent(
        chat_generator=scripted([ToolCall("research", {}, id="c1")], "It is covered."),
        tools=[tool],
        streaming_callback=lambda chunk: None,
    )
    shown = shown_of(outer)
    assert inner_model.has_streamed == [True]
    assert "Internal " not in shown
    assert [entry for entry in shown if entry.startswith("begin")] == ["begin 0", "begin 1"]
