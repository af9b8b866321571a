"""What a run is given reaches the agent as in a plain run, or is refused with the reason."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from haystack.components.agents import Agent
from haystack.components.agents.state import State
from haystack.components.generators.chat import MockChatGenerator
from haystack.dataclasses import ChatMessage, Document, FileContent, ImageContent, StreamingChunk, ToolCall
from haystack.hooks import hook
from haystack.tools import SearchableToolset, Tool, Toolset, tool
from pydantic import BaseModel

from agentstate import DurableAgent
from agentstate.durable.agent import make_durable
from agentstate.durable.registry import AgentBuildFailed, AsyncOnly
from agentstate.durable.run import Options, run, run_async
from agentstate.journals import FileJournal, MemoryJournal
from agentstate.journals.file import FileStore
from tests import sample_agents
from tests.dying import Died
from tests.sample_agents import effects
from tests.test_durable_run import comparable

pytestmark = pytest.mark.usefixtures("no_effects")


def test_an_agent_with_a_prompt_of_its_own_begins_without_a_message_and_does_so_once() -> None:
    plain = sample_agents.prompted().run([], who="Ann")
    durable = make_durable(sample_agents.prompted())
    journal = MemoryJournal.open(inputs={"state": {"who": "Ann"}})
    outcome = run(durable, journal)
    assert outcome.result is not None, outcome.why
    assert comparable(outcome.result) == comparable(plain)
    effects.clear()
    assert run(durable, MemoryJournal.open(journal.store)).result is None
    assert effects == []


def test_no_tools_are_none_of_the_agents_tools() -> None:
    plain = sample_agents.attentive().run([ChatMessage.from_user("hi")], tools=[], generation_kwargs={})
    outcome = run(
        make_durable(sample_agents.attentive()),
        MemoryJournal.open(say="hi", inputs={"tools": [], "generation_kwargs": {}}),
    )
    assert outcome.result is not None, outcome.why
    assert comparable(outcome.result) == comparable(plain)


def test_a_streaming_callback_and_a_hook_context_reach_the_run() -> None:
    @hook
    def greet(state: State) -> None:
        seen.append(state.data["hook_context"]["channel"])

    seen: list[Any] = []
    chunks: list[str] = []
    channel = object()

    def callback(chunk: StreamingChunk) -> None:
        chunks.append(chunk.content)

    agent = Agent(chat_generator=MockChatGenerator("Hello there."), hooks={"before_run": [greet]})
    options = Options(streaming_callback=callback, hook_context={"channel": channel})
    assert run(make_durable(agent), MemoryJournal.open(say="hi"), options).status == "idle"
    assert "".join(chunks) == "Hello there."
    assert seen == [channel]


async def answer(q: str) -> str:
    return q


async def stream(chunk: StreamingChunk) -> None:
    pass


def only_async_tool() -> Tool:
    parameters = {"type": "object", "properties": {"q": {"type": "string"}}}
    return Tool(name="later", description="later", parameters=parameters, async_function=answer)


class Order(BaseModel):
    number: str


@hook
async def look(state: State) -> None:
    pass


@pytest.mark.parametrize(
    "options, part",
    [
        ({"tools": [only_async_tool()]}, "the tool 'later'"),
        ({"hooks": {"before_llm": [look]}}, "a before_llm hook"),
        ({"streaming_callback": stream}, "the streaming_callback"),
    ],
    ids=["tool", "hook", "callback"],
)
def test_run_says_of_parts_that_are_async_only_what_to_call(options: dict[str, Any], part: str) -> None:
    durable = make_durable(Agent(chat_generator=MockChatGenerator("Hello."), **options), key="shop")
    journal = MemoryJournal.open(say="hi")
    with pytest.raises(AsyncOnly, match=f"parts that are async only: {part}\\. Call `await run_async"):
        run(durable, journal)
    assert asyncio.run(run_async(durable, journal)).status == "idle"


@tool
def look_up(q: str) -> str:
    """Look up."""
    return q


@tool
def count(q: str) -> str:
    """Count."""
    return q


def answering(seen: list[Any], **options: Any) -> Agent:
    def reply(messages: list[ChatMessage], tools: Any = None, **kwargs: Any) -> ChatMessage:
        seen.append(
            ([message.to_dict() for message in messages], [tool.name for tool in tools or ()], kwargs)
        )
        return ChatMessage.from_assistant(f"{len(messages)} messages.")

    return Agent(chat_generator=MockChatGenerator(response_fn=reply), **options)


SCHEMA = {"doc": {"type": Document}, "data": {"type": dict}, "who": {"type": str}}
LOOKED_UP = ToolCall("look_up", {"q": "x"}, id="1")
PICTURE = ImageContent(base64_image="iVBORw0KGgo=", mime_type="image/png", validation=False)
LETTER = FileContent(base64_data="aGVsbG8=", mime_type="application/pdf", filename="letter.pdf")
TAGGED = {"$type": "document", "value": {"content": "x"}}
Turn = tuple[Any, dict[str, Any]]


def user(*parts: Any) -> ChatMessage:
    return ChatMessage.from_user(content_parts=list(parts))


# What the agent is made of, and what each turn is given: its messages, and the rest.
SEARCHABLE = SearchableToolset([look_up], search_threshold=1)
TURNS: dict[str, tuple[dict[str, Any], list[Turn]]] = {
    "picture and file": ({}, [([user("Look:", PICTURE, LETTER)], {})]),
    "file in a later turn": ({}, [([user("Hello.")], {}), ([user("Look:", LETTER)], {})]),
    "several messages": ({}, [([user("One."), user("Two.")], {})]),
    "earlier history": (
        {"system_prompt": "Be kind."},
        [
            (
                [
                    user("Find x."),
                    ChatMessage.from_assistant(tool_calls=[LOOKED_UP]),
                    ChatMessage.from_tool("x", origin=LOOKED_UP),
                    ChatMessage.from_assistant("Here."),
                    user("And?"),
                ],
                {},
            )
        ],
    ),
    "prompt alone, in each turn": (
        {"user_prompt": "Greet {{ who }}.", "system_prompt": "Be {{ how }}."},
        [([], {"who": "Ann", "how": "kind"}), ([], {"who": "Bob", "how": "brief"})],
    ),
    "prompt behind a message": ({"user_prompt": "Greet {{ who }}."}, [([user("Hello.")], {"who": "Ann"})]),
    "tools by name": ({"tools": [look_up, count]}, [([user("Hello.")], {"tools": ["count"]})]),
    "no tools": ({"tools": [look_up, count]}, [([user("Hello.")], {"tools": []})]),
    "the agent's tool as an object": ({"tools": [look_up, count]}, [([user("Hello.")], {"tools": [count]})]),
    "a toolset of them": ({"tools": [look_up, count]}, [([user("Hello.")], {"tools": Toolset([look_up])})]),
    "the agent's toolset that finds tools": (
        {"tools": [SEARCHABLE, count]},
        [([user("Hello.")], {"tools": [SEARCHABLE]})],
    ),
    "state": ({"state_schema": SCHEMA}, [([user("Hello.")], {"doc": Document(content="x"), "data": TAGGED})]),
    "state of a later turn": (
        {"state_schema": SCHEMA},
        [([user("Hello.")], {"who": "Ann"}), ([user("Bye.")], {"who": "Bob", "data": {"n": 1}})],
    ),
    "generation options": ({}, [([user("Hello.")], {"generation_kwargs": {"seed": 7, "$type": "x"}})]),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "in_file, is_async", [(False, False), (True, False), (True, True)], ids=["memory", "file", "async"]
)
@pytest.mark.parametrize("case", TURNS)
def test_each_turn_is_given_what_a_plain_run_is_given(
    case: str, in_file: bool, is_async: bool, tmp_path: Path
) -> None:
    options, turns = TURNS[case]
    by_plain: list[Any] = []
    by_durable: list[Any] = []
    plain = answering(by_plain, **options)
    results = []
    earlier: list[ChatMessage] = []
    for messages, inputs in turns:
        asked = [*earlier, *messages]
        results.append(
            asyncio.run(plain.run_async(asked, **inputs)) if is_async else plain.run(asked, **inputs)
        )
        earlier = [message for message in results[-1]["messages"] if not message.is_from("system")]
    durable = DurableAgent(
        answering(by_durable, **options), tmp_path / "session.jsonl" if in_file else MemoryJournal.open()
    )
    outcomes = [
        asyncio.run(durable.run_async(messages, **inputs)) if is_async else durable.run(messages, **inputs)
        for messages, inputs in turns
    ]
    assert [comparable(outcome.result) for outcome in outcomes] == [comparable(result) for result in results]
    assert by_durable == by_plain


@pytest.mark.parametrize(
    "options, messages, inputs, reason",
    [
        ({}, [], {}, "There is no message to run the agent with."),
        ({"user_prompt": "Greet {{ who }}."}, [], {}, "The agent's prompts need values for: who."),
        ({"tools": [look_up]}, "Hi", {"tools": [count]}, "cannot use the tool 'count'"),
        ({"tools": [look_up]}, "Hi", {"tools": ["lookup"]}, "has no tools lookup. It has: look_up."),
        (
            {"state_schema": SCHEMA},
            "Hi",
            {"data": {"x": object()}},
            "'data'\\['x'\\] holds a builtins.object",
        ),
        (
            {},
            "Hi",
            {"generation_kwargs": {"response_format": Order}},
            r"response_format'\] holds the class Order, which cannot be stored. Give its JSON schema, .*"
            r"\"schema\": Order.model_json_schema\(\)}}, or give the class to the chat generator itself",
        ),
        ({}, "Hi", {"streaming_callback": stream}, r"coroutine function, which only `await run_async"),
    ],
    ids=[
        *("no message", "no variable", "another tool", "an unknown tool", "a value that cannot be stored"),
        *("a class", "an async callback"),
    ],
)
def test_what_cannot_be_run_is_refused_with_the_reason_and_asks_nothing(
    options: dict[str, Any], messages: Any, inputs: dict[str, Any], reason: str
) -> None:
    durable = DurableAgent(answering([], **options), MemoryJournal.open())
    with pytest.raises((ValueError, TypeError), match=reason):
        durable.run(messages, **inputs)
    assert durable.journal().store.turns.all == []
    assert durable.history() == []


def test_an_async_callback_is_for_a_run_that_is_awaited() -> None:
    chunks: list[str] = []

    class Callback:
        async def __call__(self, chunk: StreamingChunk) -> None:
            chunks.append(chunk.content)

    durable = DurableAgent(answering([]), MemoryJournal.open())
    for call in (lambda: durable.run("Hi", Callback()), lambda: durable.resume(Callback())):
        with pytest.raises(ValueError, match="Give `run` and `resume` a plain function"):
            call()
    assert durable.journal().store.turns.all == []
    assert asyncio.run(durable.run_async("Hi", Callback())).finished
    assert chunks
    assert asyncio.run(durable.run_async("Again", lambda chunk: chunks.append(chunk.content))).finished


def test_live_objects_reach_each_run_of_a_script_and_are_not_stored(tmp_path: Path) -> None:
    @hook
    def greet(state: State) -> None:
        contexts.append(state.data["hook_context"])

    contexts: list[Any] = []
    chunks: list[str] = []
    agent = Agent(chat_generator=MockChatGenerator("Hello there."), hooks={"before_run": [greet]})
    durable = DurableAgent(agent, tmp_path / "session.jsonl")
    context = {"client": object()}
    durable.run("Hi", lambda chunk: chunks.append(chunk.content), hook_context=context)
    durable.run("Bye")
    assert "".join(chunks) == "Hello there."
    assert contexts == [context, {}]
    assert "client" not in (tmp_path / "session.jsonl").read_text()


@pytest.mark.parametrize("opened", [MemoryJournal.open, FileJournal.open], ids=["memory", "file"])
def test_inputs_given_in_code_are_plain_data_whatever_their_keys(
    opened: Callable[..., Any], tmp_path: Path
) -> None:
    where = [tmp_path / "session.jsonl"] if opened == FileJournal.open else []
    inputs = {"state": {"doc": Document(content="x"), "data": TAGGED}}
    journal = opened(*where, say="Hi", inputs=inputs)
    outcome = run(make_durable(answering([], state_schema=SCHEMA)), journal)
    assert outcome.result is not None, outcome.why
    assert outcome.result["data"] == {"$type": "document", "value": {"content": "x"}}
    assert outcome.result["doc"].content == "x"
    json.dumps(journal.store.inputs)
    if where:
        journal.close()


def test_inputs_of_a_journal_that_no_run_has_are_refused() -> None:
    with pytest.raises(ValueError, match="no inputs stat; there are state, generation_kwargs, tools"):
        MemoryJournal.open(say="Hi", inputs={"stat": {}})
    with pytest.raises(TypeError, match="by a list of their names"):
        MemoryJournal.open(say="Hi", inputs={"tools": [look_up]})


@pytest.mark.slow
@pytest.mark.parametrize("committed", [True, False], ids=["after", "before"])
def test_the_inputs_of_a_later_turn_survive_a_kill_at_any_write(
    committed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_write = FileStore.write
    schema = {"data": {"type": dict}}
    options = {"user_prompt": "Greet {{ who }}.", "state_schema": schema, "tools": [look_up, count]}
    inputs: dict[str, Any] = {"data": {"n": 2}, "tools": []}
    died = 0
    for dies_at in range(1, 9):
        path, seen = tmp_path / f"{dies_at}.jsonl", list[Any]()
        DurableAgent(answering(seen, **options), path).run([], who="Ann", data={"n": 1})
        writes = iter(range(1, 100))

        def write(store: FileStore, record: Any, writes: Any = writes, dies_at: int = dies_at) -> None:
            number = next(writes)
            if number == dies_at and not committed:
                raise Died
            real_write(store, record)
            if number == dies_at:
                raise Died

        monkeypatch.setattr(FileStore, "write", write)
        try:
            DurableAgent(answering(seen, **options), path).run([], who="Bob", key="second", **inputs)
        except Died:
            died += 1
        monkeypatch.setattr(FileStore, "write", real_write)
        outcome = DurableAgent(answering(seen, **options), path).run([], who="Bob", key="second", **inputs)
        asked = [message.text for message in outcome.result["messages"] if message.is_from("user")]
        assert (asked, outcome.result["data"]) == (["Greet Ann.", "Greet Bob."], {"n": 2}), dies_at
        assert seen[-1][1] == [], dies_at
    assert died >= 4


@pytest.mark.parametrize("name", ["key", "break_point"])
@pytest.mark.parametrize("kind", ["state", "variable"])
def test_a_value_with_the_name_of_a_parameter_of_run_is_refused_before_it_could_be_lost(
    name: str, kind: str
) -> None:
    options: dict[str, Any] = (
        {"state_schema": {name: {"type": str}}}
        if kind == "state"
        else {"system_prompt": f"Use {{{{ {name} }}}}."}
    )
    with pytest.raises(
        AgentBuildFailed, match=f"has a state value or variable '{name}', which is a parameter of"
    ):
        DurableAgent(answering([], **options), MemoryJournal.open())
