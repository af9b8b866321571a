"""Recognises what a customer wants from the scripted model, by keywords."""

import re
from collections.abc import Callable, Container
from typing import Any

from agentstate.demo import scripts
from agentstate.demo.request import Request
from agentstate.demo.scripts import Script

ABLE_TO = {
    "look_up_claim": "look up a claim",
    "look_up_policy": "look up a policy",
    "check_deductible": "check a deductible",
    "search_knowledge": "search the knowledge base",
    "issue_refund": "refund a deductible",
    "send_letter": "send a letter",
    "slow_research": "research our sources",
}

_GENERAL = (
    r"\b(explain|rules?|knowledge|appeal\w*|(is|are|what is) \w+ cover\w*|does (it|insurance) cover"
    r"|how (do|does|long|can|much|many|is|are)|when (is|are|do|does)"
    r"|what (happens|if|counts|do (i|we|you) need|is an?))\b"
)
_REFUND = r"\b(refund|reimburse|money back|pay (me |it )?back|repay)"
_LETTER = r"\b(letter|write to|in writing|by post)\b"
_RESEARCH = r"\b(research|investigate|study|sources?|report on)\b"
_POLICY = r"\b(policy|policies|premium|insured|renew\w*|status|cover\w*)\b"
_SMALL_TALK = (
    r"^\W*(hi|hello|hey|good (morning|afternoon|evening|day)|thanks|thank you|bye|goodbye|great|ok|okay)\b"
)


def scripts_for(request: Request) -> list[Script]:
    """The scripts for what the request asks for; none if it is not understood."""
    selected: list[Script] = []

    def choose(tool: str, script: Callable[..., Script], *arguments: Any) -> None:
        if tool in request.tools:
            selected.append(script(request, *arguments))

    if request.says(_RESEARCH):
        choose("slow_research", scripts.research)
    named = request.claims or request.policies
    general = request.says(_GENERAL)
    if general and not named and not request.says(r"\b(my|mine)\b"):
        choose("search_knowledge", scripts.knowledge)
        return selected
    if request.says(_REFUND):
        choose("issue_refund", scripts.refund)
    else:
        for number in request.claims:
            choose("look_up_claim", scripts.claim, number)
        if request.says(r"\bdeductible"):
            choose("check_deductible", scripts.deductible)
        elif request.says(r"\bclaims?\b") and not named:
            choose("look_up_claim", scripts.claim)
        if request.says(_LETTER):
            choose("send_letter", scripts.letter)
        elif request.policies:
            for number in request.policies:
                choose("look_up_policy", scripts.policy, number)
        elif not selected and request.says(_POLICY):
            choose("look_up_policy", scripts.policy)
    if general or request.says(r"\bcover"):
        choose("search_knowledge", scripts.knowledge)
    return selected


def small_talk(request: Request) -> str:
    """The answer where no script fits."""
    offer = _offer(request.tools)
    if re.search(r"\b(never mind|forget (it|that))\b", request.latest, re.IGNORECASE):
        return "All right, I'll leave it at that."
    if re.search(_SMALL_TALK, request.latest, re.IGNORECASE):
        if re.search(r"\b(thanks|thank you|bye|goodbye)\b", request.latest, re.IGNORECASE):
            return "You are welcome. Write again whenever something else comes up."
        return greeting(request.tools)
    return (
        f"I am not sure what you mean. I can {offer}; numbers look like CLM-1042 and POL-8801. Which is it?"
    )


def greeting(tools: Container[str]) -> str:
    """The answer to a greeting, of an agent with these tools."""
    return f"Hello! I can {_offer(tools)}. What can I do for you?"


def _offer(tools: Container[str]) -> str:
    able = [ability for tool, ability in ABLE_TO.items() if tool in tools]
    return ", ".join(able[:-1]) + (" or " if len(able) > 1 else "") + able[-1] if able else "talk"
