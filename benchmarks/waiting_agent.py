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


def start_one_by_one(sessions: int, *, behind: int = 0, at_once: int = 1) -> None:
    """Start so many sessions of one reply each, the next when the one before has ended.

    :param behind: Each is started while so many others run, at any moment of their steps.
    :param at_once: So many are started together.
    """
    from sessions_app.models import Session
    from tools.services import wait_for

    running = Session.objects.filter(status="running")
    for first in range(0, sessions, at_once):
        if behind:
            wait_for(lambda: running.count() >= behind, "the others to run")
            time.sleep(SECONDS * random.random())
        _wait_until_idle([_start(0) for _ in range(min(at_once, sessions - first))])


def _wait_until_idle(these: list[UUID]) -> None:
    from sessions_app.models import Session
    from tools.services import wait_for

    ended = Session.objects.filter(pk__in=these, status="idle")
    wait_for(lambda: ended.count() == len(these), "the sessions to end")


def _start(steps: int) -> UUID:
    from sessions_app import actions
    from sessions_app.access.roles import Actor

    return actions.start(actor=Actor.system("benchmark"), agent="waiting", message=str(steps)).pk
