"""The agent of the benchmarks with a whole installation: its model takes AGENTSTATE_BENCH_MODEL_MS.

The message that starts a session is the number of steps, each with one call, after which it is done.
"""

import os
import random
import time
from uuid import UUID

from haystack.components.agents import Agent
from haystack.components.generators.chat import MockChatGenerator
from haystack.dataclasses import ChatMessage, ToolCall
from haystack.tools import Tool

from agentstate import ToolPolicy, agent
from benchmarks import workload

SECONDS = int(os.environ.get("AGENTSTATE_BENCH_MODEL_MS", "300")) / 1000
MOST = 100_000


def _reply(messages: list[ChatMessage]) -> ChatMessage:
    time.sleep(SECONDS)
    number = sum(1 for message in messages if message.tool_call_results)
    if number >= int(messages[0].text or 0):
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
    return Agent(chat_generator=MockChatGenerator(response_fn=_reply), tools=[tool], max_agent_steps=MOST)


def start(sessions: int, steps: int) -> None:
    """Start so many sessions, in the process of a Django command."""
    for _ in range(sessions):
        _start(steps)


def start_one_by_one(sessions: int, behind: int = 0) -> None:
    """Start so many sessions of one reply each, the next when the one before has ended.

    :param behind: Each is started while so many others run, at any moment of their steps.
    """
    from sessions_app.models import Session
    from tools.services import wait_for

    running = Session.objects.filter(status="running")
    for _ in range(sessions):
        if behind:
            wait_for(lambda: running.count() >= behind, "the others to run")
            time.sleep(SECONDS * random.random())
        this = Session.objects.filter(pk=_start(0), status="idle")
        wait_for(this.exists, "the session to end")


def _start(steps: int) -> UUID:
    from sessions_app import actions
    from sessions_app.access.roles import Actor

    return actions.start(actor=Actor.system("benchmark"), agent="waiting", message=str(steps)).pk
