"""The demo agents: one decorated function each.

With `OPENAI_API_KEY` they use a real model (`OPENAI_BASE_URL` names any compatible server,
`AGENTSTATE_DEMO_MODEL` the model); without, a scripted one that needs no network. Haystack is imported when
an agent is built, not before.
"""

import os
from typing import TYPE_CHECKING

from agentstate import ToolPolicy, agent
from agentstate.demo.tools import LETTER_SECONDS
from agentstate.names import MEMORY_TOOLS

if TYPE_CHECKING:
    from haystack.components.agents import Agent
    from haystack.components.generators.chat.types import ChatGenerator

HOUR = 3600.0

CLAIMS_PROMPT = """\
You work at the claims desk of a small insurance company. Look things up before you answer, several at once
where you can, and say where an answer comes from. A refund is for a deductible that was withheld and is
waived: look up the claim and its policy, search the knowledge base and check the deductible first, make a
plan, refund exactly what is due, then confirm it by letter, completing each step. When a person rejects a
refund, tell the customer why. Ask when you do not know which claim or policy is meant.
Unless they say otherwise, the customer is the holder of policy {{ policy_number or 'POL-8801' }}."""

RESEARCH_PROMPT = """\
You work at the research desk of a small insurance company. List the sources, make a plan
with a step for each, read them with slow_research one at a time, completing each step, and then report what
they say, naming the source of each statement."""

LETTERS_PROMPT = """\
You write letters for a small insurance company. Look up the policy, then send the letter that is asked for.
If the printing service did not confirm a letter, say so; never send it twice by yourself."""

READING = ToolPolicy(idempotent=True, cache_ttl=300)
MEMORY = dict.fromkeys(MEMORY_TOOLS, ToolPolicy(idempotent=True))
LETTER = ToolPolicy(
    timeout=LETTER_SECONDS,
    effect="posts a letter to the customer",
    summary="Send a letter on policy {policy_number}: {subject}",
)


@agent(
    "claims",
    stream=True,
    title="Claims desk",
    description="Answers questions on policies and claims, refunds deductibles once a person approves.",
    policies={
        "look_up_policy": READING,
        "look_up_claim": READING,
        "check_deductible": READING,
        "search_knowledge": ToolPolicy(idempotent=True, cache_ttl=24 * HOUR),
        **MEMORY,
        "issue_refund": ToolPolicy(
            approval=True,
            approval_ttl=HOUR,
            effect="moves money, cannot be undone",
            summary="Refund {amount} on claim {claim_number}",
            formats={"amount": "money:USD"},
        ),
        "send_letter": LETTER,
    },
)
def claims_desk() -> "Agent":
    from haystack import Document
    from haystack.components.agents import Agent
    from haystack.tools import tool

    from agentstate.demo import tools
    from agentstate.durable.memory import MEMORY_SCHEMA, memory_tools

    return Agent(
        chat_generator=_model(),
        system_prompt=CLAIMS_PROMPT,
        required_variables=[],
        tools=[
            tool(tools.look_up_policy),
            tool(tools.look_up_claim),
            tool(tools.check_deductible),
            tool(
                tools.search_knowledge,
                outputs_to_state={"docs": {"source": "documents"}},
                outputs_to_string={"source": "documents", "handler": tools.documents_as_text},
            ),
            tool(tools.issue_refund),
            tool(tools.send_letter),
            *memory_tools(),
        ],
        state_schema={"docs": {"type": list[Document]}, **MEMORY_SCHEMA},
        max_agent_steps=20,
    )


@agent(
    "research",
    stream=True,
    title="Research desk",
    description="Reads every source the company has, one after the other, and reports. Slow on purpose.",
    policies={"list_sources": READING, "slow_research": ToolPolicy(idempotent=True, timeout=60), **MEMORY},
)
def research_desk() -> "Agent":
    from haystack.components.agents import Agent
    from haystack.tools import tool

    from agentstate.demo import tools
    from agentstate.durable.memory import MEMORY_SCHEMA, memory_tools

    return Agent(
        chat_generator=_model(),
        system_prompt=RESEARCH_PROMPT,
        tools=[tool(tools.list_sources), tool(tools.slow_research), *memory_tools()],
        state_schema=MEMORY_SCHEMA,
        max_agent_steps=40,
    )


@agent(
    "letters",
    title="Letter room",
    description="Sends letters to policy holders.",
    policies={"look_up_policy": READING, "send_letter": LETTER},
)
def letter_room() -> "Agent":
    from haystack.components.agents import Agent
    from haystack.tools import tool

    from agentstate.demo import tools

    return Agent(
        chat_generator=_model(),
        system_prompt=LETTERS_PROMPT,
        tools=[tool(tools.look_up_policy), tool(tools.send_letter)],
        max_agent_steps=10,
    )


def uses_real_model() -> bool:
    return bool(os.environ.get("OPENAI_API_KEY"))


def _model() -> "ChatGenerator":
    if uses_real_model():
        from haystack.components.generators.chat import OpenAIChatGenerator

        return OpenAIChatGenerator(
            model=os.environ.get("AGENTSTATE_DEMO_MODEL") or "gpt-5-mini",
            api_base_url=os.environ.get("OPENAI_BASE_URL") or None,
            timeout=60,
            max_retries=0,  # the worker tries again, and the session shows it
        )
    from agentstate.demo import scripted

    return scripted.ScriptedChatGenerator()
