"""Agents that have a `run` of their own: its code runs around the agent's loop, or without it.

The turn of such an agent ends when its `run` has returned, with what that returned. Whatever it does before that runs
again on a resumed run; where its loop ran, all that the journal holds of it is replayed.
"""

from typing import Any

from haystack.components.agents import Agent
from haystack.components.agents.state import State
from haystack.components.generators.chat import LLM
from haystack.dataclasses import ChatMessage

from agentstate.durable.hooks import RestoreCheckpoint, begin_turn, commit_turn_end
from agentstate.durable.run_context import RunContext

# What Haystack's own `run` sets in the State of a new run, and the reason of an answer without tool calls.
_NEW_RUN = {
    "step_count": 0,
    "token_usage": {},
    "context_tokens": 0,
    "tool_call_counts": {},
    "exit_reason": "text",
}


def has_own_run(agent: Agent) -> bool:
    """Whether code that is not Haystack's stands around the agent's loop."""
    known = {Agent.run, Agent.run_async, LLM.run, LLM.run_async}
    methods = (getattr(method, "__func__", None) for method in (agent.run, agent.run_async))
    return not known.issuperset(methods)


def record_answer(run: RunContext, agent: Agent, given: list[ChatMessage], result: Any) -> None:
    """Commit the end of the turn: the State of the loop, if it ran, with what the agent's `run` made of it.

    :param given: The messages that the agent was run with.
    :raises TypeError: for a result that is not that of an agent.
    """
    messages = result.get("messages") if isinstance(result, dict) else None
    last = result.get("last_message") if isinstance(result, dict) else None
    if messages is None and isinstance(last, ChatMessage):
        messages = [*given, last]
    if not isinstance(messages, list) or not all(isinstance(message, ChatMessage) for message in messages):
        raise TypeError(
            f"The run of {type(agent).__name__} returned no messages, as an agent's run does, but {result!r:.200}"
        )
    run.commit_deferred()
    state = run.final_state
    if state is None:  # it answered without its loop, or instead of one that failed
        state = State(schema=agent.resolved_state_schema, data={**_NEW_RUN, "tools": [], "messages": given})
        if not run.loop_has_begun:
            RestoreCheckpoint().apply(run, state)
        begin_turn(run, state)
    named = {name: result[name] for name in (*_NEW_RUN, *agent.state_schema) if name in result}
    state.data.update({**named, "messages": messages})
    commit_turn_end(run, state)
