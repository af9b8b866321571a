"""What a script hands over by mistake is refused at once, with what to give instead, and nothing is stored."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from haystack.components.agents import Agent

from agentstate import Breakpoint, DurableAgent, SemanticCache, ToolPolicy, agent
from agentstate.durable.registry import registry
from agentstate.journals import MemoryJournal, SessionFolder
from tests import sample_agents

pytestmark = pytest.mark.usefixtures("no_effects")


@pytest.fixture
def durable(tmp_path: Path) -> DurableAgent:
    return DurableAgent(sample_agents.long_run(1), tmp_path / "anna.jsonl")


@pytest.mark.parametrize(
    "given, said",
    [
        ("shop", r"not of the text 'shop'. An agent that is registered: DurableAgent.of\('shop', journal\)"),
        (Agent, "not of the class Agent. Give an instance of it."),
        (sample_agents.long_run, "not of a function. Give the agent that it returns."),
        (None, "not of None."),
        ({"tools": []}, "not of a dict."),
    ],
    ids=["a key", "its class", "its factory", "None", "a dict"],
)
def test_what_is_no_agent(tmp_path: Path, given: Any, said: str) -> None:
    with pytest.raises(TypeError, match=f"A durable agent is made of a Haystack Agent, {said}"):
        DurableAgent(given, tmp_path / "anna.jsonl")


@pytest.mark.parametrize(
    "given, said",
    [
        (5, "not an int"),
        (None, "not None"),
        (MemoryJournal, "not the class MemoryJournal"),
        (SessionFolder("sessions"), r"not a SessionFolder. Give one session of it: folder.path\(id\)"),
    ],
    ids=["a number", "None", "a class", "a folder"],
)
def test_what_is_no_journal(given: Any, said: str) -> None:
    with pytest.raises(
        TypeError, match=f"needs a journal, or the path of its file as a text or Path, {said}"
    ):
        DurableAgent(sample_agents.plain_talk(), given)


@pytest.mark.parametrize(
    "given, said",
    [
        ([ToolPolicy()], "The policies must be a dict by tool name.*not a list"),
        (
            {"fast": {"approval": True}},
            r"The policy of the tool 'fast' must be a ToolPolicy\(...\), not {'approval'",
        ),
        ({"fast": ToolPolicy}, r"The policy of the tool 'fast' must be a ToolPolicy\(...\)"),
        ({sample_agents.long_run: ToolPolicy()}, "must be tool names, which are texts"),
    ],
    ids=["a list", "a dict", "the class", "by an object"],
)
def test_what_are_no_policies(tmp_path: Path, given: Any, said: str) -> None:
    with pytest.raises(TypeError, match=said):
        DurableAgent(sample_agents.long_run(1), tmp_path / "anna.jsonl", policies=given)
    with pytest.raises(TypeError, match=said):
        agent("mistaken", policies=given)(sample_agents.plain_talk)
    assert "mistaken" not in [registration.key for registration in registry.all()]


@pytest.mark.parametrize(
    "given, said",
    [
        ({"idempotent": "no"}, "idempotent must be True or False, not 'no'"),
        ({"approval": 1}, "approval must be True or False, not 1"),
        ({"redacted": None}, "redacted must be True or False, not None"),
        ({"timeout": "5"}, "timeout must be a number of seconds, not '5'"),
        ({"cache_ttl": True}, "cache_ttl must be a number of seconds, not True"),
        ({"effect": 5}, "effect must be a text, not 5"),
        ({"summary": None}, "summary must be a text, not None"),
        ({"formats": "date"}, "formats must be a dict of formats by the argument's name, not 'date'"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_no_policy_can_say(given: dict[str, Any], said: str) -> None:
    with pytest.raises(TypeError, match=said):
        ToolPolicy(**given)


WRONG: dict[str, tuple[Callable[[Any], Any], str]] = {
    "texts": (lambda it: it.run(["hello"]), r"contain a str\. Give .* ChatMessage\.from_user\('hello'\)"),
    "nothing in a list": (
        lambda it: it.run([None]),
        "contain None. Give a text, a ChatMessage, or a list of",
    ),
    "a dict": (lambda it: it.run({"role": "user"}), "A dict is not a message.*from_openai_dict_format"),
    "dicts": (lambda it: it.run([{"role": "user"}]), "contain a dict.*from_openai_dict_format"),
    "a number": (
        lambda it: it.run(5),
        "An int is not a message for an agent. Give a text, a ChatMessage, or a list",
    ),
    "bytes": (lambda it: it.run(b"hi"), "A bytes is not a message"),
    "a key": (lambda it: it.run("hi", key=5), "The key of a turn is a text, not an int"),
    "tools": (lambda it: it.run("hi", tools=5), "a list of names or of the agent's own tools, not an int"),
    "a breakpoint": (
        lambda it: it.run("hi", break_point="fast"),
        r"This is a str, not a Breakpoint. Breakpoint\('fast'\) stops",
    ),
    "breakpoints": (lambda it: it.run("hi", break_point=[3]), "This is an int, not a Breakpoint"),
    "a callback": (lambda it: it.run("hi", "loud"), "A str is not a streaming_callback"),
    "a context": (lambda it: it.run("hi", hook_context=[1]), "The hook_context is a dict, not a list"),
    "options": (
        lambda it: it.run("hi", generation_kwargs=[1]),
        "The generation_kwargs are a dict of values by name",
    ),
    "a checkpoint": (lambda it: it.resume(at=3), r"An int is not a checkpoint.*Give one of checkpoints\(\)"),
    "changes": (lambda it: it.resume(changes="x"), "The changes are a dict of values by name, not a str"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_no_run_can_be_given(durable: DurableAgent, what: str) -> None:
    call, said = WRONG[what]
    with pytest.raises(TypeError, match=said):
        call(durable)
    assert not durable.journal().store.turns.all
    assert durable.run("hi").text == "Long done."


@pytest.mark.parametrize("key", ["order\ud800", "order\x00"])
def test_a_key_that_cannot_be_stored_is_refused(durable: DurableAgent, key: str) -> None:
    with pytest.raises(ValueError, match="which cannot be stored"):
        durable.run("hi", key=key)
    assert not durable.journal().store.turns.all
    assert durable.run("hi", key="order 1").text == "Long done."


def test_the_same_is_said_of_an_asynchronous_run(durable: DurableAgent) -> None:
    wrong: Any = ["hello"]
    with pytest.raises(TypeError, match="The messages contain a str"):
        asyncio.run(durable.run_async(wrong))


@pytest.mark.parametrize(
    "options, said",
    [
        ({"key": 5}, "key must be a text, not 5"),
        ({"title": 5}, "The agent 'mistaken': title must be a text, not 5"),
        ({"stream": "no"}, "stream must be True or False, not 'no'"),
        ({"run_async": "no"}, "run_async must be True, False or None, not 'no'"),
        ({"embedder": "ada"}, "embedder must be a function or class that makes the embedder, not 'ada'"),
        (
            {"embedder": sample_agents.plain_talk, "semantic_cache": True},
            r"must be a SemanticCache\(...\), not True",
        ),
        ({"breakpoints": "fast"}, r"This is a str, not a Breakpoint. Breakpoint\('fast'\)"),
        ({"breakpoints": ["fast"]}, r"This is a str, not a Breakpoint. Breakpoint\('fast'\)"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_no_registration_can_say(options: dict[str, Any], said: str) -> None:
    with pytest.raises(TypeError, match=said):
        agent(**{"key": "mistaken", **options})(sample_agents.plain_talk)
    assert "mistaken" not in [registration.key for registration in registry.all()]


def test_a_decorator_without_a_key_or_above_something_else_than_a_function() -> None:
    decorator: Any = agent
    with pytest.raises(TypeError, match="write @agent\\('a-key'\\) above the function that builds it"):
        decorator(sample_agents.plain_talk)
    with pytest.raises(TypeError, match="above the function that builds the agent, but was given an Agent"):
        decorator("mistaken")(sample_agents.plain_talk())
    with pytest.raises(TypeError, match=r"An agent itself is given to DurableAgent\(agent, journal\)"):
        DurableAgent.of(decorator, "anna.jsonl")


@pytest.mark.parametrize(
    "make, said",
    [
        (lambda: Breakpoint(sample_agents.fast), "the tool is given by its name, a text, not as a Tool"),  # type: ignore[arg-type]
        (lambda: SemanticCache(min_similarity="high"), "min_similarity must be a number, not 'high'"),  # type: ignore[arg-type]
        (lambda: SemanticCache(ttl=True), "ttl must be a number, not True"),
    ],
    ids=["a breakpoint", "a similarity", "a time"],
)
def test_what_no_option_can_be(make: Callable[[], Any], said: str) -> None:
    with pytest.raises(TypeError, match=said):
        make()


def test_a_condition_that_is_code() -> None:
    when: Any = lambda arguments: True  # noqa: E731
    with pytest.raises(ValueError, match=r"A condition is \(argument, comparison, value\)"):
        Breakpoint("fast", when=when)


def test_what_is_no_cache(tmp_path: Path) -> None:
    url: Any = "redis://localhost"
    with pytest.raises(TypeError, match="A str is not a cache for a DurableAgent: it needs get and set"):
        DurableAgent(sample_agents.plain_talk(), tmp_path / "anna.jsonl", cache=url)
