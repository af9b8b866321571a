"""The fingerprint of an agent's definition stays the same from version to version of AgentState.

A session whose last checkpoint has another fingerprint than the agent waits for a person, so the wrapping of the agent
must not be part of it. The literals were computed with an earlier version, but that of the agent that cannot be
serialised, of which more is noticed since.
"""

import functools
import json
import os
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from haystack import Pipeline
from haystack.components.agents import Agent
from haystack.components.agents.state import State
from haystack.components.generators.chat import MockChatGenerator
from haystack.components.retrievers import InMemoryBM25Retriever
from haystack.document_stores.in_memory import InMemoryDocumentStore
from haystack.tools import PipelineTool, SearchableToolset, Tool, Toolset

from agentstate.demo import agents
from agentstate.durable.agent import make_durable
from agentstate.durable.approvals import JournalConfirmationStrategy
from agentstate.durable.definition import fingerprint
from agentstate.durable.memory import MEMORY_SCHEMA, memory_tools
from tests import sample_agents

KNOWN_WITH = "3.4.0"


def remembering() -> Agent:
    """An agent with hooks at every point that is wrapped, and with the tools of the working memory."""
    from haystack.hooks.human_in_the_loop import ConfirmationHook

    return Agent(
        chat_generator=MockChatGenerator("Hello."),
        system_prompt="You remember.",
        tools=[sample_agents.fast, *memory_tools()],
        state_schema=MEMORY_SCHEMA,
        hooks={
            "before_run": [sample_agents.greet],
            "before_llm": [sample_agents.greet],
            "before_tool": [ConfirmationHook({"fast": JournalConfirmationStrategy()})],
            "on_exit": [sample_agents.require_save],
            "after_run": [sample_agents.sign],
        },
    )


def unserialisable() -> Agent:
    """An agent whose `to_dict` fails: its model answers by a function inside a function."""
    return sample_agents.hooked()


@pytest.mark.skipif(version("haystack-ai") != KNOWN_WITH, reason="the text of `Agent.to_dict` is Haystack's")
@pytest.mark.parametrize(
    "build, expected",
    [
        (agents.claims_desk, "d30b0ce8e45515ec251570c99a4c9b47f27b92c4d6c409b0e2e59513798cdf0c"),
        (agents.research_desk, "a79bddc0681f4dc3d1acbf7c83827a94a7c0902ed8b6b5863ac90692328ed293"),
        (agents.letter_room, "30bdf343f192a6912cba87d00caa0e8ba1d7ce73bef27dad96d233ac249833ae"),
        (remembering, "448e3410024ee76c9473b9ad0cc737df310bb788cdda881b6d4eb712da14413d"),
        (unserialisable, "fe84aa2572dad0702912b809bcb4cc251cd3e915389f52105a1b89d7117df137"),
    ],
)
def test_the_fingerprint_is_that_of_the_version_before(
    build: Any, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    agent = build()
    assert make_durable(agent).definition == expected
    assert fingerprint(agent) == expected


class Remote(Toolset):
    """Finds its tools when it is warmed up, as one for a server does, and is serialised as any toolset."""

    def __init__(self) -> None:
        super().__init__([])

    def warm_up(self) -> None:
        if not self.tools:
            self.tools = [sample_agents.fast, sample_agents.slow]


class Odd(MockChatGenerator):
    """A generator whose `to_dict` has what differs from process to process."""

    def to_dict(self) -> dict[str, Any]:
        folder = Path(tempfile.mkdtemp())
        return {
            "type": "odd",
            "init_parameters": {
                "words": {"one", "two", "three", "four", "five"},
                "kinds": frozenset({("a", 1), ("b", 2), ("c", 3)}),
                "callback": self.run,
                "object": repr(object()),
                "path": str(folder / "cache"),
                "folder": folder,
            },
        }


def searching() -> Agent:
    return Agent(
        chat_generator=MockChatGenerator("Hello."),
        tools=SearchableToolset([Remote(), sample_agents.fetch], search_threshold=1),
    )


def with_sets_in_its_tools() -> Agent:
    parameters = {"type": "object", "properties": {"q": {"type": "string", "default": {"a", "b", "c", "d"}}}}
    tool = Tool(name="odd", description="odd", parameters=parameters, function=len)
    return Agent(chat_generator=MockChatGenerator("Hello."), tools=[tool])


class Findings(Toolset):
    """Finds a tool when it is warmed up whose function cannot be serialised."""

    def __init__(self) -> None:
        super().__init__([])

    def warm_up(self) -> None:
        self.tools = [Tool(name="found", description="found", parameters={}, function=lambda: "found")]


class Ledger:
    """The object of a bound method; the description of an agent says nothing of what it holds."""

    def __init__(self) -> None:
        self.entries = {object()}

    def pay(self) -> str:
        return "paid"


class Booking:
    """A hook that cannot be serialised."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger

    def run(self, state: State) -> None:
        pass


def with_functions_of_every_kind() -> Agent:
    def tool_of(name: str, function: Any, **options: Any) -> Tool:
        return Tool(name=name, description=name, parameters={}, function=function, **options)

    ledger, later = Ledger(), MockChatGenerator(response_fn=lambda messages: "Later.")
    pipeline = Pipeline()
    pipeline.add_component("inner", Agent(chat_generator=later))
    return Agent(
        chat_generator=MockChatGenerator(response_fn=lambda messages: "Hello."),
        tools=[
            tool_of("bound", ledger.pay),
            tool_of("partial", functools.partial(len, [ledger])),
            tool_of("agent", Agent(chat_generator=later).run),
            tool_of("callable", MagicMock()),
            PipelineTool(pipeline=pipeline, name="piped", description="piped", parameters={"type": "object"}),
            Toolset([tool_of("method of a type", str.upper)]),
            SearchableToolset([tool_of("searched", ledger.pay)]),
        ],
        state_schema={"seen": {"type": list[str] | None, "handler": lambda before, new: new}},
        hooks={"before_llm": [Booking(ledger)]},  # type: ignore[list-item]
    )


def finding_documents(index: str | None = None) -> Agent:
    pipeline = Pipeline()
    pipeline.add_component("retriever", InMemoryBM25Retriever(InMemoryDocumentStore(index=index)))
    find = PipelineTool(
        pipeline=pipeline,
        input_mapping={"query": ["retriever.query"]},
        output_mapping={"retriever.documents": "documents"},
        name="find",
        description="Finds documents.",
    )
    return Agent(chat_generator=MockChatGenerator("Hello."), tools=[find])


UNSTABLE = {
    "finds what cannot be serialised": lambda: Agent(
        chat_generator=MockChatGenerator("Hello."), tools=Findings()
    ),
    "finds documents in memory": finding_documents,
    "functions of every kind": with_functions_of_every_kind,
    "remote": lambda: Agent(chat_generator=MockChatGenerator("Hello."), tools=Remote()),
    "remote that cannot be serialised": lambda: Agent(
        chat_generator=sample_agents.scripted("Hello."), tools=[Remote(), sample_agents.fast]
    ),
    "searching": searching,
    "odd": lambda: Agent(chat_generator=Odd("Hello.")),
    "a temporary path inside a prompt": lambda: Agent(
        chat_generator=MockChatGenerator("Hello."),
        system_prompt=f"Files are in '{tempfile.mkdtemp()}' and ({tempfile.mkdtemp()}/notes).",
    ),
    "sets in its tools": with_sets_in_its_tools,
    **{name: build for name, (build, _) in sample_agents.KINDS.items()},
}
PRINT = """
import json
from tests.test_definition import UNSTABLE, fingerprint
print(json.dumps({name: fingerprint(build()) for name, build in UNSTABLE.items()}))
"""


@pytest.mark.slow
def test_every_process_computes_the_same_fingerprint_whatever_its_hash_seed() -> None:
    fingerprints = []
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        result = subprocess.run(
            [sys.executable, "-c", PRINT], env=environment, capture_output=True, text=True, check=True
        )
        fingerprints.append(json.loads(result.stdout.splitlines()[-1]))
    here = {name: fingerprint(build()) for name, build in UNSTABLE.items()}
    assert fingerprints == [here, here]


@pytest.mark.parametrize("name", UNSTABLE)
def test_warming_up_an_agent_or_making_it_durable_does_not_change_its_fingerprint(name: str) -> None:
    agent = UNSTABLE[name]()
    before = make_durable(agent).definition
    agent.warm_up()
    assert make_durable(agent).definition == before
    assert fingerprint(agent) == before


def test_documents_in_another_store_in_memory_are_another_definition() -> None:
    assert fingerprint(finding_documents("policies")) != fingerprint(finding_documents("claims"))


def test_another_tool_prompt_or_toolset_is_another_definition() -> None:
    def build(**options: Any) -> str:
        return fingerprint(Agent(chat_generator=MockChatGenerator("Hello."), **options))

    fingerprints = {
        build(),
        build(system_prompt="You help."),
        build(tools=[sample_agents.fast]),
        build(tools=[sample_agents.slow]),
        build(tools=Remote()),
        build(tools=[Remote(), sample_agents.fast]),
        build(tools=Toolset([sample_agents.fast, sample_agents.slow])),
    }
    assert len(fingerprints) == 7
