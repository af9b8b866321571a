"""A hook that uses a chat generator of its own finds it as it is, in durable runs and in plain runs after them."""

import copy
from typing import Any

from haystack import component
from haystack.components.agents import Agent
from haystack.components.agents.state import State
from haystack.dataclasses import ChatMessage

from agentstate.durable.agent import make_durable
from agentstate.durable.definition import fingerprint
from agentstate.durable.run import run
from agentstate.journals import MemoryJournal
from tests.sample_agents import one_tool


@component
class Strict:
    """It has options and attributes that not every generator has."""

    def __init__(self, model: str = "small") -> None:
        self.model = model
        self.asked: list[tuple[str, bool]] = []

    @component.output_types(replies=list[ChatMessage])
    def run(
        self, messages: list[ChatMessage], tools: Any = None, *, tools_strict: bool = False
    ) -> dict[str, Any]:
        self.asked.append((self.model, tools_strict))
        return {"replies": [ChatMessage.from_assistant("in short")]}


class Shorten:
    def __init__(self, generator: Strict) -> None:
        self.chat_generator = generator

    def run(self, state: State) -> None:
        self.chat_generator.model = "large"
        self.chat_generator.run([ChatMessage.from_user("hi")], tools_strict=True)

    def to_dict(self) -> dict[str, Any]:
        model = self.chat_generator.model
        return {"type": "tests.test_hooks_generators.Shorten", "init_parameters": {"model": model}}


def shortening(generator: Strict) -> Agent:
    return one_tool(lambda: "ok").clone(hooks={"after_tool": [Shorten(generator)]})


def test_a_hook_reads_sets_and_calls_its_generator_as_in_a_plain_run() -> None:
    generator = Strict()
    agent = shortening(generator)
    outcome = run(make_durable(agent), MemoryJournal.open(say="hi"))
    assert outcome.result is not None, outcome.why
    agent.run([ChatMessage.from_user("hi")])
    assert generator.asked == [("large", True)] * 2
    assert generator.model == "large"


def test_making_an_agent_durable_does_not_change_what_its_hooks_say_of_themselves() -> None:
    agent = shortening(Strict())
    before = fingerprint(agent)
    assert make_durable(agent).definition == make_durable(agent).definition == before
    [hook] = copy.deepcopy(agent).hooks["after_tool"]
    assert hook.to_dict()["init_parameters"] == {"model": "small"}
