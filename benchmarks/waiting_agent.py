"""The agent of `benchmarks.throughput`: its model takes AGENTSTATE_BENCH_MODEL_MS and asks for one call a step."""

import os
import time

from haystack.components.agents import Agent
from haystack.components.generators.chat import MockChatGenerator
from haystack.dataclasses import ChatMessage, ToolCall
from haystack.tools import Tool

from agentstate import ToolPolicy, agent
from benchmarks import workload

SECONDS = int(os.environ.get("AGENTSTATE_BENCH_MODEL_MS", "300")) / 1000
STEPS = int(os.environ.get("AGENTSTATE_BENCH_STEPS", "6"))


def _reply(messages: list[ChatMessage]) -> ChatMessage:
    time.sleep(SECONDS)
    number = sum(1 for message in messages if message.tool_call_results)
    if number == STEPS:
        return ChatMessage.from_assistant("done")
    return ChatMessage.from_assistant(
        tool_calls=[ToolCall("look_up", workload.arguments(number), id=f"c{number}")]
    )


def _look_up(number: int, question: str) -> str:
    return workload.result(number)


@agent("waiting", policies={"look_up": ToolPolicy(idempotent=True)})
def build() -> Agent:
    properties = {"number": {"type": "integer"}, "question": {"type": "string"}}
    tool = Tool("look_up", "Looks something up.", {"type": "object", "properties": properties}, _look_up)
    return Agent(
        chat_generator=MockChatGenerator(response_fn=_reply), tools=[tool], max_agent_steps=STEPS + 2
    )


def start(sessions: int) -> None:
    """Start so many sessions, in the process of a Django command."""
    from sessions_app import actions
    from sessions_app.access.roles import Actor

    for _ in range(sessions):
        actions.start(actor=Actor.system("benchmark"), agent="waiting", message="hi")
