"""The demo agents: one decorated function each.

To import this module registers them. So nothing does but the setting `AGENTSTATE_AGENTS`: a desk of other agents would
offer these, too. Haystack is imported when an agent is built, not before.
"""

from typing import TYPE_CHECKING

from agentstate import ToolPolicy, agent
from agentstate.demo import model, prompts
from agentstate.demo.tools import LETTER_SECONDS
from agentstate.names import MEMORY_TOOLS

if TYPE_CHECKING:
    from haystack.components.agents import Agent

HOUR = 3600.0

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
        chat_generator=model.chat_generator(),
        system_prompt=prompts.CLAIMS,
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
        chat_generator=model.chat_generator(),
        system_prompt=prompts.RESEARCH,
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
        chat_generator=model.chat_generator(),
        system_prompt=prompts.LETTERS,
        tools=[tool(tools.look_up_policy), tool(tools.send_letter)],
        max_agent_steps=10,
    )
