"""A support agent whose conversation outlives its processes: three questions, three runs, one file.

    python -m examples.support_desk "What is the status of my policy POL-8801?"
    python -m examples.support_desk "Please also check whether my deductible applies."
    python -m examples.support_desk "Look up claim CLM-1042."

Nobody repeats the policy's number in the second run: the agent has it from the first. Kill a run at any moment and
start it again with the same question: it goes on where it was.
"""

import re
import sys
from collections.abc import Sequence
from typing import Annotated

from haystack.components.agents import Agent
from haystack.dataclasses import ChatMessage
from haystack.tools import tool

from agentstate import Answered, DurableAgent, ToolPolicy
from examples.scripted import call, chat_model, last_question, results, results_of_this_turn, say

FILE = "support_desk.jsonl"
POLICIES = {
    "POL-8801": {"holder": "Maria Santos", "cover": "home", "until": "31 December", "deductible": 300}
}
CLAIMS = {"CLM-1042": {"policy": "POL-8801", "what": "a broken window", "damage": 1250}}


@tool
def look_up_policy(number: Annotated[str, "the policy's number"]) -> str:
    """Look up a policy."""
    policy = POLICIES[number]
    return f"{number} of {policy['holder']}: {policy['cover']}, active until {policy['until']}"


@tool
def check_deductible(number: Annotated[str, "the policy's number"]) -> str:
    """Find out what the customer pays of each damage."""
    return f"{number}: the first {POLICIES[number]['deductible']} euros of each damage"


@tool
def look_up_claim(number: Annotated[str, "the claim's number"]) -> str:
    """Look up a claim."""
    claim = CLAIMS[number]
    return f"{number} on {claim['policy']}: {claim['what']}, {claim['damage']} euros"


def reply(messages: Sequence[ChatMessage]) -> ChatMessage:
    """What a model would do: look up what the question is about, then answer from what the tools said."""
    question, known = last_question(messages), results_of_this_turn(messages)
    if known:
        checked = ", ".join(results(messages))  # of earlier processes, too
        return say(f"{' '.join(known.values())}. In this conversation I have used: {checked}.")
    if claim := re.search(r"CLM-\d+", question):
        return call("look_up_claim", number=claim[0])
    everything_said = " ".join(message.text or "" for message in messages)
    if policy := re.search(r"POL-\d+", everything_said):
        tool_name = "check_deductible" if "deductible" in question else "look_up_policy"
        return call(tool_name, number=policy[0])
    return say("Which policy is it about? Its number begins with POL-.")


def main(question: str) -> None:
    tools = [look_up_policy, check_deductible, look_up_claim]
    agent = Agent(
        chat_generator=chat_model(reply), tools=tools, system_prompt="You answer insurance customers."
    )
    # All of them only read, so a call that a kill interrupted may run again by itself.
    policies = {tool.name: ToolPolicy(idempotent=True) for tool in tools}
    desk = DurableAgent(agent, FILE, policies=policies)
    print(f"{len(desk.history())} messages from earlier runs.")
    outcome = desk.run(question)
    print(outcome.text if isinstance(outcome, Answered) else outcome.why)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(" ".join(sys.argv[1:]))
