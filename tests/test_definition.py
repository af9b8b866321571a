"""The fingerprint of an agent's definition stays the same from version to version of AgentState.

A session whose last checkpoint has another fingerprint than the agent waits for a person, so the wrapping of the agent
must not be part of it. The literals were computed with an earlier version.
"""

from importlib.metadata import version
from typing import Any

import pytest
from haystack.components.agents import Agent
from haystack.components.generators.chat import MockChatGenerator

from agentstate.demo import agents
from agentstate.durable.agent import make_durable
from agentstate.durable.approvals import JournalConfirmationStrategy
from agentstate.durable.definition import fingerprint
from agentstate.durable.memory import MEMORY_SCHEMA, memory_tools
from tests import sample_agents

KNOWN_WITH = "3.4.0"
pytestmark = pytest.mark.skipif(
    version("haystack-ai") != KNOWN_WITH, reason="the text of `Agent.to_dict` is Haystack's"
)


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


@pytest.mark.parametrize(
    "build, expected",
    [
        (agents.claims_desk, "d30b0ce8e45515ec251570c99a4c9b47f27b92c4d6c409b0e2e59513798cdf0c"),
        (agents.research_desk, "a79bddc0681f4dc3d1acbf7c83827a94a7c0902ed8b6b5863ac90692328ed293"),
        (agents.letter_room, "30bdf343f192a6912cba87d00caa0e8ba1d7ce73bef27dad96d233ac249833ae"),
        (remembering, "448e3410024ee76c9473b9ad0cc737df310bb788cdda881b6d4eb712da14413d"),
        (unserialisable, "ddf337bad38f1b14c3bc9b20887ab3611a072f8c85a42815b79ee2440d65bce5"),
    ],
)
def test_the_fingerprint_is_that_of_the_version_before(
    build: Any, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    agent = build()
    assert make_durable(agent).definition == expected
    assert fingerprint(agent) == expected
