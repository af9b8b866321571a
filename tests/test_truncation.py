"""The truncating hook: the model sees less, whole turns only, and the journal loses nothing."""

from collections.abc import Iterator

import pytest
from haystack.components.agents import Agent
from haystack.components.generators.chat import MockChatGenerator
from haystack.dataclasses import ChatMessage, ToolCall

from agentstate import DurableAgent
from agentstate.durable.truncation import TruncateHistory
from agentstate.journals import MemoryJournal
from tests import sample_agents

seen: list[list[str]] = []


@pytest.fixture(autouse=True)
def _nothing_seen() -> Iterator[None]:
    seen.clear()
    yield
    seen.clear()


def looking(hook: TruncateHistory) -> Agent:
    """Looks once per turn, and notes which messages the model saw."""

    def reply(messages: list[ChatMessage], tools: object = None) -> ChatMessage:
        seen.append([message.role.value for message in messages])
        if messages[-1].is_from("tool"):
            return ChatMessage.from_assistant("Done.")
        return ChatMessage.from_assistant(tool_calls=[ToolCall("fast", {"q": "a"}, id=f"c{len(seen)}")])

    return Agent(
        chat_generator=MockChatGenerator(response_fn=reply),
        tools=[sample_agents.fast],
        system_prompt="Be brief.",
        hooks={"before_llm": [hook]},
    )


def test_the_newest_turns_and_the_system_message_are_what_the_model_sees() -> None:
    journal = MemoryJournal.open()
    for _ in range(4):
        DurableAgent(looking(TruncateHistory(0, keep_last_turns=2)), journal).run("hi")
    assert seen[1] == ["system", "user", "assistant", "tool"]
    assert seen[-2:] == [
        ["system", "assistant", "user"],
        ["system", "assistant", "user", "assistant", "tool"],
    ]


def test_within_the_budget_nothing_is_left_out_and_what_is_left_out_stays_in_the_journal() -> None:
    journal = MemoryJournal.open()
    DurableAgent(looking(TruncateHistory()), journal).run("hi")
    DurableAgent(looking(TruncateHistory()), journal).run("hi")
    assert len(seen[-1]) == 8
    outcome = DurableAgent(looking(TruncateHistory(0, keep_last_turns=1)), journal).run("hi")
    assert outcome.finished
    users = [body for body in journal.store.messages.values() if body["role"] == "user"]
    assert len(users) == 3


def test_the_hook_can_be_written_down() -> None:
    written = TruncateHistory(5, keep_last_turns=3).to_dict()
    assert written == {
        "type": "agentstate.durable.truncation.TruncateHistory",
        "init_parameters": {"max_tokens": 5, "keep_last_turns": 3},
    }
    assert TruncateHistory.from_dict(written).to_dict() == written
