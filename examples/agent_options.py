"""Every option of Haystack's `Agent`, each plain and durable: the same messages, state and exceptions.

    python -m examples.agent_options

The options keep their names and meanings. What durability adds is around the agent: `DurableAgent(agent, journal)`.
"""

import re
from collections.abc import Callable, Sequence
from typing import Annotated, Any

from haystack.components.agents import Agent
from haystack.components.agents.state import State
from haystack.dataclasses import ChatMessage, StreamingChunk, ToolCall
from haystack.hooks import hook
from haystack.tools import Toolset, tool

from agentstate import Answered, DurableAgent
from agentstate.journals import MemoryJournal
from examples.scripted import call, chat_model, last_question, results_of_this_turn, say

Number = Annotated[float, "a number"]
# What happens besides the messages: the durable run must do it as often as the plain one.
seen: list[str] = []


@tool
def add(a: Number, b: Number) -> str:
    """Add two numbers."""
    return f"{a + b:g}"


@tool
def divide(a: Number, b: Number) -> str:
    """Divide a number by another one."""
    return f"{a / b:g}"


@tool
def remember(a: Number, b: Number, state: State) -> str:
    """Add two numbers, and keep the sum in the State."""
    state.set("sums", [a + b])
    return f"{a + b:g}"


@tool
def report(a: Number, b: Number, streaming_callback: Any = None) -> str:
    """Add two numbers, and say so to whoever listens to the agent."""
    if streaming_callback is not None:
        streaming_callback(StreamingChunk(content="adding"))
    return f"{a + b:g}"


def reply(messages: Sequence[ChatMessage]) -> ChatMessage:
    """Computes with the tools that the question names: "add 2 and 3", or "add 2 and 3, divide 8 and 2"."""
    known = results_of_this_turn(messages)
    if known:
        return say(f"The result is {', '.join(known.values())}.")
    asked = re.findall(r"(\w+) (\d+) and (\d+)", last_question(messages))
    if len(asked) > 1:
        calls = [ToolCall(name, {"a": float(a), "b": float(b)}) for name, a, b in asked]
        return ChatMessage.from_assistant("Both at once.", tool_calls=calls)
    [(name, a, b)] = asked
    return call(name, a=float(a), b=float(b))


def calculator(**options: Any) -> Agent:
    return Agent(**{"chat_generator": chat_model(reply), "tools": [add, divide, remember, report], **options})


@hook
def count_calls(state: State) -> None:
    seen.append(f"before_tool after {len(state.data['messages'])} messages")


def listen(chunk: StreamingChunk) -> None:
    if chunk.content:
        seen.append(chunk.content)


# For each option of `Agent`: the agent, what it is asked, and further arguments of `run`.
Case = tuple[Callable[[], Agent], str | None, dict[str, Any]]
OPTIONS: dict[str, Case] = {
    "chat_generator": (lambda: calculator(chat_generator=chat_model(reply)), "add 2 and 3", {}),
    "tools": (lambda: calculator(tools=Toolset([add, divide])), "divide 8 and 2", {}),
    "system_prompt": (lambda: calculator(system_prompt="You compute."), "add 2 and 3", {}),
    "user_prompt": (
        lambda: calculator(user_prompt='{% message role="user" %}add {{ a }} and {{ b }}{% endmessage %}'),
        None,
        {"a": 2, "b": 3},
    ),
    "required_variables": (
        lambda: calculator(
            user_prompt='{% message role="user" %}add 2 and {{ b or 1 }}{% endmessage %}',
            required_variables=[],
        ),
        None,
        {},
    ),
    "exit_conditions": (lambda: calculator(exit_conditions=["add"]), "add 2 and 3", {}),
    "state_schema": (
        lambda: calculator(state_schema={"sums": {"type": list}}),
        "remember 2 and 3",
        {"sums": [1]},
    ),
    "max_agent_steps": (lambda: calculator(max_agent_steps=1), "add 2 and 3", {}),
    "streaming_callback": (lambda: calculator(streaming_callback=listen), "add 2 and 3", {}),
    "raise_on_tool_invocation_failure": (
        lambda: calculator(raise_on_tool_invocation_failure=True),
        "divide 1 and 0",
        {},
    ),
    "tool_concurrency_limit": (
        lambda: calculator(tool_concurrency_limit=1),
        "add 2 and 3, divide 8 and 2",
        {},
    ),
    "tool_streaming_callback_passthrough": (
        lambda: calculator(streaming_callback=listen, tool_streaming_callback_passthrough=True),
        "report 2 and 3",
        {},
    ),
    "hooks": (lambda: calculator(hooks={"before_tool": [count_calls]}), "add 2 and 3", {}),
}


def plain(agent: Agent, question: str | None, arguments: dict[str, Any]) -> str:
    try:
        return told(agent.run([ChatMessage.from_user(question)] if question else [], **arguments))
    except Exception as error:
        return f"failed: {type(error).__name__}: {error}"


def durable(agent: Agent, question: str | None, arguments: dict[str, Any]) -> str:
    outcome = DurableAgent(agent, MemoryJournal.open()).run(question, **arguments)
    return told(outcome.result) if isinstance(outcome, Answered) else f"failed: {outcome.why}"


def told(result: dict[str, Any]) -> str:
    """The conversation on one line, the values of the state, and what happened besides."""
    roles = " ".join(message.role for message in result["messages"])
    state = {name: result[name] for name in ("sums",) if name in result}
    return f"{roles}: {result['last_message'].text or 'ended here'} {state or ''}{seen or ''}".rstrip()


def main() -> None:
    for option, (build, question, arguments) in OPTIONS.items():
        outcomes = []
        for run in (plain, durable):
            seen.clear()
            outcomes.append(run(build(), question, arguments))
        print(f"{option:<36}{'equal  ' if outcomes[0] == outcomes[1] else 'DIFFERS'}  {outcomes[0]}")
        if outcomes[0] != outcomes[1]:
            print(f"{'':<45}{outcomes[1]}")


if __name__ == "__main__":
    main()
